"""What is in the wheel: documentation whose examples run, stubs that say what there is, licences, a version."""

import ast
import doctest
import importlib.metadata
import inspect
import pathlib
import subprocess
import sys
import unittest

import memlane

PLACE = pathlib.Path(memlane.__file__).parent
GUIDE = pathlib.Path(__file__).resolve().parents[3] / "docs/guides/python.md"
# What a stub has and the classes' dictionaries have not, or the other way round.
OTHERS = {"__module__", "__doc__", "__weakref__", "__repr__", "__new__", "__buffer__", "__release_buffer__"}


def stubs():
    """Names of the stub: functions with their parameters, classes with their members likewise."""

    def parameters(function):
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return [argument.arg for argument in named if argument.arg not in ("self", "cls")]

    found = {}
    for node in ast.parse((PLACE / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = parameters(node)
        elif isinstance(node, ast.ClassDef):
            members = [member for member in node.body if isinstance(member, ast.FunctionDef)]
            found[node.name] = {member.name: parameters(member) for member in members}
    return found


class Package(unittest.TestCase):
    def test_examples_in_the_documentation_run(self):
        finder, failed, tried = doctest.DocTestFinder(), 0, 0
        found = finder.find(memlane, "memlane")
        for name in memlane.__all__:
            thing = getattr(memlane, name)
            if not isinstance(thing, str) and not isinstance(thing, type):
                found += finder.find(thing, name, module=False, globs={})
        runner = doctest.DocTestRunner()
        for test in found:
            result = runner.run(test)
            failed, tried = failed + result.failed, tried + result.attempted
        self.assertEqual(failed, 0)
        self.assertGreater(tried, 25)

    def test_examples_in_the_guide_run(self):
        result = doctest.testfile(str(GUIDE), module_relative=False, encoding="utf-8")
        self.assertEqual(result.failed, 0)
        self.assertGreater(result.attempted, 5)

    def test_everything_that_is_public_is_documented(self):
        for name in memlane.__all__:
            thing = getattr(memlane, name)
            if isinstance(thing, str):
                continue
            self.assertTrue(inspect.getdoc(thing), name)
            if isinstance(thing, type) and not issubclass(thing, Exception):
                for member, value in vars(thing).items():
                    if not member.startswith("_"):
                        self.assertTrue(inspect.getdoc(value), f"{name}.{member}")

    def test_the_stubs_are_what_there_is(self):
        stubbed = stubs()
        for name in memlane.__all__:
            if name == "__version__":
                continue
            thing = getattr(memlane, name)
            self.assertIn(name, stubbed)
            if not isinstance(thing, type):
                self.assertEqual(list(inspect.signature(thing).parameters), stubbed[name], name)
                continue
            if issubclass(thing, Exception):
                self.assertTrue(issubclass(thing, memlane.Error))
                continue
            there = set(vars(thing)) - OTHERS
            said = set(stubbed[name]) - OTHERS
            # Both have what a class has without a word of ours.
            self.assertEqual({m for m in there if not m.startswith("__")}, {m for m in said if not m.startswith("__")}, name)
            self.assertEqual(said - there, set(), f"{name}: only in the stub")
            for member, parameters in stubbed[name].items():
                value = vars(thing).get(member)
                if member.startswith("__") or not callable(value):
                    continue
                real = [p for p in inspect.signature(value).parameters if p != "self"]
                self.assertEqual(real, parameters, f"{name}.{member}")

    def test_the_wheel_has_what_belongs_to_it(self):
        self.assertTrue((PLACE / "py.typed").exists())
        about = importlib.metadata.metadata("memlane")
        self.assertEqual(about["Version"], memlane.__version__)
        self.assertEqual(about["License-Expression"], "MIT OR Apache-2.0")
        files = [str(file) for file in importlib.metadata.files("memlane")]
        for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
            self.assertTrue(any(file.endswith(licence) for file in files), licence)
        self.assertEqual([file for file in files if file.startswith("..")], [])
        # One library for all of Python from 3.11 on.
        self.assertTrue(any(file.endswith("_memlane.abi3.so") for file in files), files)

    def test_neither_numpy_nor_torch_is_imported_before_it_is_needed(self):
        asked = "import sys, memlane; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
        self.assertEqual(subprocess.run([sys.executable, "-c", asked], timeout=60).returncode, 0)

    def test_what_this_machine_has(self):
        found = memlane.probe()
        self.assertEqual(set(found), {"memory", "paths"})
        names = [finding["name"] for finding in found["paths"]]
        self.assertTrue({"mapped", "staged", "kernel"} <= set(names), names)
        for finding in found["memory"] + found["paths"]:
            self.assertTrue(finding["what"])
            for reason in finding["lacks"]:
                self.assertGreater(len(reason), 10)


if __name__ == "__main__":
    sys.exit(unittest.main())
