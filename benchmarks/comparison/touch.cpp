// A Python module that touches buffers between calls, in the same way for every contender, and only a few nanoseconds
// slower than the memory itself. It also has calls that do nothing, or only yield, to measure Python's own time.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "touching.h"

#include <sched.h>

namespace {

struct View {
    Py_buffer buffer{};

    View() = default;
    View(const View &) = delete;
    View &operator=(const View &) = delete;
    ~View() {
        if (buffer.obj != nullptr) { PyBuffer_Release(&buffer); }
    }

    [[nodiscard]] bool get(PyObject *object, int flags) { return PyObject_GetBuffer(object, &buffer, flags) == 0; }
    [[nodiscard]] std::span<std::byte> bytes() const {
        return {static_cast<std::byte *>(buffer.buf), static_cast<std::size_t>(buffer.len)};
    }
};

struct Touch {
    PyObject_HEAD;
    View *input; // what touch() writes, or nullptr
    View *table;
    View *output; // what touch() reads, or nullptr
    std::uint64_t expected;
    std::uint64_t num_wrong;
};

Touch *self_of(PyObject *object) { return reinterpret_cast<Touch *>(object); }

int touch_init(PyObject *object, PyObject *arguments, PyObject *) {
    PyObject *input;
    PyObject *table;
    PyObject *output;
    if (!PyArg_ParseTuple(arguments, "OOO", &input, &table, &output)) { return -1; }
    Touch *self = self_of(object);
    self->table = new View;
    if (!self->table->get(table, PyBUF_SIMPLE)) { return -1; }
    if (input != Py_None) {
        self->input = new View;
        if (!self->input->get(input, PyBUF_WRITABLE)) { return -1; }
    }
    if (output != Py_None) {
        self->output = new View;
        if (!self->output->get(output, PyBUF_SIMPLE)) { return -1; }
    }
    return 0;
}

void touch_free(PyObject *object) {
    Touch *self = self_of(object);
    delete self->input;
    delete self->table;
    delete self->output;
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type); // an instance holds its type
}

PyObject *touch_touch(PyObject *object, PyObject *) {
    Touch *self = self_of(object);
    if (self->output != nullptr) { self->num_wrong += touching::sum_of_lines(self->output->bytes()) != self->expected; }
    if (self->input != nullptr) { touching::write(self->input->bytes(), self->table->bytes()); }
    Py_RETURN_NONE;
}

PyObject *touch_learn(PyObject *object, PyObject *) {
    Touch *self = self_of(object);
    self->expected = self->output != nullptr ? touching::sum_of_lines(self->output->bytes()) : 0;
    self->num_wrong = 0;
    Py_RETURN_NONE;
}

PyObject *touch_num_wrong(PyObject *object, PyObject *) {
    const std::uint64_t found = self_of(object)->num_wrong;
    self_of(object)->num_wrong = 0;
    return PyLong_FromUnsignedLongLong(found);
}

PyObject *module_differs(PyObject *, PyObject *arguments) {
    PyObject *array;
    PyObject *wanted;
    Py_ssize_t offset;
    View whole;
    View table;
    if (!PyArg_ParseTuple(arguments, "OOn", &array, &wanted, &offset) || !whole.get(array, PyBUF_SIMPLE) ||
        !table.get(wanted, PyBUF_SIMPLE)) {
        return nullptr;
    }
    bool equal = true;
    touching::along(whole.bytes(), table.bytes(), static_cast<std::size_t>(offset),
                    [&equal](std::span<std::byte> part, std::span<const std::byte> from) {
                        equal = std::memcmp(part.data(), from.data(), part.size()) == 0;
                        return equal;
                    });
    return PyBool_FromLong(!equal);
}

PyMethodDef touch_methods[] = {
    {"touch", touch_touch, METH_NOARGS, "Reads the output, compares it with what learn() saw, then writes the input."},
    {"learn", touch_learn, METH_NOARGS, "Takes the present output as right, and resets the count of wrong ones."},
    {"num_wrong", touch_num_wrong, METH_NOARGS, "Returns how many outputs were wrong since the last num_wrong()."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot touch_slots[] = {
    {Py_tp_doc, const_cast<char *>("Touch(input or None, table, output or None): the buffers to touch between calls.")},
    {Py_tp_init, reinterpret_cast<void *>(touch_init)},
    {Py_tp_dealloc, reinterpret_cast<void *>(touch_free)},
    {Py_tp_methods, touch_methods},
    {0, nullptr},
};

PyType_Spec touch_type = {"touch.Touch", sizeof(Touch), 0, Py_TPFLAGS_DEFAULT, touch_slots};

struct Nothing {
    PyObject_HEAD;
    int takes_turns;
};

int nothing_init(PyObject *object, PyObject *arguments, PyObject *) {
    return PyArg_ParseTuple(arguments, "p", &reinterpret_cast<Nothing *>(object)->takes_turns) ? 0 : -1;
}

PyObject *nothing_call(PyObject *, PyObject *const *, Py_ssize_t, PyObject *) { Py_RETURN_NONE; }

PyObject *turn_call(PyObject *object, PyObject *const *, Py_ssize_t, PyObject *) {
    if (reinterpret_cast<Nothing *>(object)->takes_turns) { sched_yield(); }
    Py_RETURN_NONE;
}

PyMethodDef nothing_method(const char *name, _PyCFunctionFastWithKeywords call) {
    // The same cast as in CPython: the flags say which signature is called.
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), METH_FASTCALL | METH_KEYWORDS,
            "Takes any arguments; does nothing, or yields to the next rank."};
}

// Calls that need not wait for another rank never yield.
PyMethodDef nothing_methods[] = {
    nothing_method("all_reduce", turn_call), nothing_method("reduce_scatter", turn_call),
    nothing_method("reduce", nothing_call),  nothing_method("broadcast", nothing_call),
    nothing_method("all_gather", turn_call), nothing_method("all_to_all", turn_call),
    nothing_method("send", nothing_call),    nothing_method("recv", turn_call),
    nothing_method("barrier", turn_call),    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot nothing_slots[] = {
    {Py_tp_doc,
     const_cast<char *>("Nothing(takes turns): a communicator whose calls return at once, the minimum of a call, or "
                        "after they yield to the other ranks on the core.")},
    {Py_tp_init, reinterpret_cast<void *>(nothing_init)},
    {Py_tp_methods, nothing_methods},
    {0, nullptr},
};

PyType_Spec nothing_type = {"touch.Nothing", sizeof(Nothing), 0, Py_TPFLAGS_DEFAULT, nothing_slots};

PyObject *module_turns(PyObject *, PyObject *number) {
    const Py_ssize_t num_turns = PyLong_AsSsize_t(number);
    if (num_turns == -1 && PyErr_Occurred()) { return nullptr; }
    for (Py_ssize_t turn = 0; turn < num_turns; ++turn) { sched_yield(); }
    Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {
    {"differs", module_differs, METH_VARARGS, "differs(array, table, offset): does it differ from the repeated table?"},
    {"turns", module_turns, METH_O, "turns(number): yields so many times, without Python in between."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "touch", nullptr, -1, module_methods, nullptr, nullptr, nullptr, nullptr};

bool has_type(PyObject *made, const char *name, PyType_Spec &spec) {
    PyObject *type = PyType_FromSpec(&spec);
    const bool well = type != nullptr && PyModule_AddObjectRef(made, name, type) == 0;
    Py_XDECREF(type);
    return well;
}

} // namespace

PyMODINIT_FUNC PyInit_touch() {
    PyObject *made = PyModule_Create(&module);
    if (made != nullptr && !(has_type(made, "Touch", touch_type) && has_type(made, "Nothing", nothing_type))) {
        Py_CLEAR(made);
    }
    return made;
}
