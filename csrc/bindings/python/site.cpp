#include "bindings/python/site.h"

#include <nanobind/nanobind.h>
#include <string>
#include <string_view>
#include <unordered_map>

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
    // Below the first function of a thread is Python's own module, which says nothing about the program.
    return module != nullptr && (is_of(module, "hocket") || is_of(module, "torch") || is_of(module, "threading"));
}

} // namespace

const Site *call_site() {
    // As many as there are lines with calls; the interpreter lock guards it.
    static std::unordered_map<std::string, Site> sites;
    nb::object frame = nb::borrow(reinterpret_cast<PyObject *>(PyEval_GetFrame()));
    while (frame.is_valid()) {
        auto *const at = reinterpret_cast<PyFrameObject *>(frame.ptr());
        if (!is_inside(nb::steal<nb::dict>(PyFrame_GetGlobals(at)))) {
            const nb::object code = nb::steal(reinterpret_cast<PyObject *>(PyFrame_GetCode(at)));
            const std::string file = nb::str(code.attr("co_filename")).c_str();
            const std::string line = file + ":" + std::to_string(PyFrame_GetLineNumber(at));
            const auto [site, is_new] = sites.try_emplace(line);
            if (is_new) site->second = {static_cast<std::uint32_t>(sites.size()), line};
            return &site->second;
        }
        frame = nb::steal(reinterpret_cast<PyObject *>(PyFrame_GetBack(at)));
    }
    return nullptr;
}

} // namespace hocket
