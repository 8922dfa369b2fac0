#include "bindings/site.h"

#include <nanobind/nanobind.h>
#include <set>
#include <string>
#include <string_view>

namespace nb = nanobind;

namespace hocket {
namespace {

bool is_of(std::string_view module, std::string_view package) {
    return module.starts_with(package) && (module.size() == package.size() || module[package.size()] == '.');
}

/// Whether a frame with these globals is not the program's own.
bool is_inside(const nb::dict &globals) {
    PyObject *const name = PyDict_GetItemString(globals.ptr(), "__name__");
    const char *const module = name != nullptr && PyUnicode_Check(name) != 0 ? PyUnicode_AsUTF8(name) : nullptr;
    if (module == nullptr) PyErr_Clear();
    return module != nullptr && (is_of(module, "hocket") || is_of(module, "torch"));
}

} // namespace

const char *call_site() {
    static std::set<std::string> sites; // as many as there are lines with calls; the interpreter lock guards it
    nb::object frame = nb::borrow(reinterpret_cast<PyObject *>(PyEval_GetFrame()));
    while (frame.is_valid()) {
        auto *const at = reinterpret_cast<PyFrameObject *>(frame.ptr());
        if (!is_inside(nb::steal<nb::dict>(PyFrame_GetGlobals(at)))) {
            const nb::object code = nb::steal(reinterpret_cast<PyObject *>(PyFrame_GetCode(at)));
            const std::string file = nb::str(code.attr("co_filename")).c_str();
            return sites.insert(file + ":" + std::to_string(PyFrame_GetLineNumber(at))).first->c_str();
        }
        frame = nb::steal(reinterpret_cast<PyObject *>(PyFrame_GetBack(at)));
    }
    return nullptr;
}

} // namespace hocket
