"""Documentation, signatures and stubs say what is there."""

import ast
import doctest
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import kvant
from kvant import _kvant, dynamic_range, elementwise, linear, plan, smoothing

MODULES = [kvant, elementwise, dynamic_range, linear, smoothing, plan]
FUNCTIONS = [name for name in kvant.__all__ if inspect.isroutine(getattr(kvant, name))]
CLASSES = [getattr(kvant, name) for name in kvant.__all__ if inspect.isclass(getattr(kvant, name))]
PLAN_CLASSES = [getattr(plan, name) for name in plan.__all__]
FOLDER = Path(kvant.__file__).parent

# As the issue has them; more may follow, keyword-only.
SIGNATURES = {
    "quantize_per_tensor": "x, scale, zero_point=0, *, dtype='int8', q_min=None, q_max=None, numerics='exact'",
    "quantize_per_channel": "x, scale, zero_point, axis, *, dtype='int8', q_min=None, q_max=None, numerics='exact'",
    "quantize_per_token": "x, scale, zero_point=0, *, dtype='int8', q_min=None, q_max=None, numerics='exact'",
    "quantize_per_group":
        "x, scale, zero_point, group_size, axis=-1, *, dtype='int8', q_min=None, q_max=None, numerics='exact'",
    "quantize_per_block":
        "x, scale, zero_point, block_size, *, dtype='int8', q_min=None, q_max=None, numerics='exact'",
    "dequantize_per_tensor": "q, scale, zero_point=0, *, dtype='float32'",
    "dequantize_per_channel": "q, scale, zero_point, axis, *, dtype='float32'",
    "dequantize_per_token": "q, scale, zero_point=0, *, dtype='float32'",
    "dequantize_per_group": "q, scale, zero_point, group_size, axis=-1, *, dtype='float32'",
    "dequantize_per_block": "q, scale, zero_point, block_size, *, dtype='float32'",
    "fake_quantize":
        "x, scale, zero_point=0, q_min=None, q_max=None, *, grid=None, axis=None, group_size=None, numerics='exact'",
    "quantize_backward": "dy, x, scale, zero_point=0, q_min=None, q_max=None, *, grid=None, axis=None, group_size=None",
    "fake_quantize_backward":
        "dy, x, scale, zero_point=0, q_min=None, q_max=None, *, grid=None, axis=None, group_size=None",
    "dequantize_backward": "dy, scale, *, axis=None, group_size=None",
    "dynamic_range_quantize":
        "x, *, mode='symmetric', scope='token', axis=None, group_size=None, dtype='int8', q_min=None, q_max=None, "
        "include_zero=False",
    "w8a8_linear":
        "act_q, act_scale, weight_q, weight_scale, bias=None, *, act_zero_point=0, dtype='float32'",
    "quantized_linear": "x, weight, weight_scale, bias=None, *, mode='symmetric', act_scale=None, smooth=None",
    "smoothquant_linear":
        "act_q, weight_q, act_scale, weight_scale, bias=None, *, act_zero_point=0, dtype='float32'",
    "smooth_scales": "act_absmax, weights, alpha=0.5",
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    want = [p for p in inspect.signature(eval(f"lambda {SIGNATURES[name]}: 0")).parameters.values()]
    have = [p.replace(annotation=inspect.Parameter.empty)
            for p in inspect.signature(getattr(kvant, name)).parameters.values()]  # fmt: skip
    positional = [p for p in want if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert have[: len(positional)] == positional
    rest = {p.name: p for p in have[len(positional) :]}
    for p in want[len(positional) :]:
        assert rest.pop(p.name) == p
    for p in rest.values():
        assert p.kind == p.KEYWORD_ONLY and p.default is not p.empty, f"{p} is not a keyword with a default"


def test_every_function_that_returns_arrays_takes_out():
    for name in SIGNATURES:
        assert "out" in inspect.signature(getattr(kvant, name)).parameters, name


def test_all_is_complete_and_sorted():
    public = {
        name for name, value in vars(kvant).items()
        if not name.startswith("_") and (not inspect.ismodule(value) or name == "plan")
    } - {"annotations", "Any"}  # fmt: skip
    assert set(kvant.__all__) == public
    assert kvant.__all__ == sorted(kvant.__all__)
    assert set(SIGNATURES) < set(kvant.__all__)
    for module in MODULES:
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert hasattr(module, name)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_modules_have_docstrings(module):
    assert module.__doc__ and len(module.__doc__) > 40


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_docstrings_with_examples(name):
    text = inspect.getdoc(getattr(kvant, name))
    assert text and ">>> " in text


@pytest.mark.parametrize("name", [n for n in SIGNATURES if n not in ("w8a8_linear", "quantized_linear")])
def test_functions_have_docstrings_with_formulas(name):
    assert " = " in inspect.getdoc(getattr(kvant, name)).split(">>>")[0]


@pytest.mark.parametrize("cls", CLASSES + PLAN_CLASSES, ids=lambda c: c.__name__)
def test_classes_and_their_methods_have_docstrings(cls):
    assert inspect.getdoc(cls) and cls.__doc__ is not object.__doc__
    for name in vars(cls):
        if not name.startswith("_") and not isinstance(getattr(cls, name), property):
            assert inspect.getdoc(getattr(cls, name)), f"{cls.__name__}.{name} has no docstring"


def documented():
    """Every docstring: of modules, functions, classes and members."""
    for module in MODULES:
        yield module.__name__, module.__doc__
    for name in FUNCTIONS:
        yield f"kvant.{name}", getattr(kvant, name).__doc__
    for cls in CLASSES + PLAN_CLASSES:
        yield cls.__name__, cls.__doc__
        for name in vars(cls):
            text = getattr(getattr(cls, name), "__doc__", None)
            if not name.startswith("__") and isinstance(text, str):
                yield f"{cls.__name__}.{name}", text


DOCUMENTED = [(name, text) for name, text in documented() if text and ">>>" in text]


@pytest.mark.parametrize("name,text", DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_examples(name, text):
    names = {**vars(kvant), **{n: getattr(plan, n) for n in plan.__all__}, "np": np, "kvant": kvant}
    test = doctest.DocTestParser().get_doctest(inspect.cleandoc(text), names, name, None, None)
    report = []
    with np.printoptions(precision=8, linewidth=75, threshold=1000, suppress=False):
        result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(report)


# ---- The stub -------------------------------------------------------------------------------------------------


def stub():
    """What _kvant.pyi declares: functions, variables, and members of classes with their parameters."""
    functions, variables, classes = {}, set(), {}
    for node in ast.parse((FOLDER / "_kvant.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            variables.add(node.target.id)
        elif isinstance(node, ast.ClassDef):
            classes[node.name] = node
    return functions, variables, classes


def members(cls, classes):
    """Of the stub's class and of its bases."""
    found = {}
    for base in cls.bases:
        found.update(members(classes[base.id], classes))
    found.update({m.name: m for m in cls.body if isinstance(m, ast.FunctionDef)})
    return found


def is_property(node):
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_every_plan_of_the_extension_is_in_the_module_of_plans():
    assert {n for n in vars(_kvant) if n.endswith("Plan")} == {n for n in plan.__all__ if n.endswith("Plan")}
    assert all(hasattr(plan, n) for n in plan.__all__)
    assert not {n for n in vars(plan) if inspect.isbuiltin(getattr(plan, n))}, "functions came along with the plans"


def test_the_stub_names_what_the_extension_has():
    functions, variables, classes = stub()
    has = {name: value for name, value in vars(_kvant).items() if not name.startswith("__")}
    assert public(functions) == public(n for n, v in has.items() if callable(v) and not inspect.isclass(v))
    assert public(classes) == public(n for n, v in has.items() if inspect.isclass(v))
    assert variables == public(n for n, v in has.items() if not callable(v) and not inspect.ismodule(v))
    (names,) = (n.value for n in ast.parse((FOLDER / "_kvant.pyi").read_text()).body if isinstance(n, ast.Assign))
    assert ast.literal_eval(names) == _kvant.__all__


@pytest.mark.parametrize("name", sorted(public(stub()[2])))
def test_the_stub_names_the_members_of_classes(name):
    classes = stub()[2]
    cls = getattr(_kvant, name)
    declared = members(classes[name], classes)
    assert public(declared) == public(n for n in dir(cls))
    for method in declared:
        assert hasattr(cls, method), method
    for member in public(declared):
        assert is_property(declared[member]) == isinstance(getattr(cls, member), property), member


@pytest.mark.parametrize("name", sorted(public(stub()[2])))
def test_the_stub_has_the_parameters_of_methods(name):
    """The extension's own signatures stand in the first line of its docstrings."""
    classes = stub()[2]
    cls = getattr(_kvant, name)
    for method, node in members(classes[name], classes).items():
        if is_property(node) or method in ("__bool__", "__len__"):
            continue
        arguments = node.args
        names = [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs if a.arg != "self"]
        first = (getattr(cls, method).__doc__ or "").split("\n")[0]
        written = re.findall(r"(\w+)(?=: |=|,|\))", first)
        assert [n for n in written if n in names] == names, f"{name}.{method}: {names} are not in {first}"


def test_the_package_is_typed():
    assert (FOLDER / "py.typed").exists()
