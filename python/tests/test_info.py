"""kvant.info() and what the module says about itself."""

import re

import numpy as np

import kvant


def test_info():
    info = kvant.info()
    assert isinstance(info, dict)
    assert info["version"] == kvant.__version__ and re.fullmatch(r"\d+\.\d+\.\d+", kvant.__version__)
    assert info["isa"] in ("scalar", "avx2")
    assert info["threads"] == kvant.get_num_threads()
    kvant.set_num_threads(3)
    assert kvant.info()["threads"] == 3
    assert all(isinstance(key, str) for key in info)


def test_info_is_a_new_dict():
    kvant.info()["version"] = "mine"
    assert kvant.info()["version"] == kvant.__version__


def test_the_instruction_set_is_the_one_that_plans_use():
    plan = kvant.plan.QuantizePlan.select((64, 64))
    assert plan.sku().isa == kvant.info()["isa"] == kvant.PackedWeight(np.ones((2, 2), np.int8)).isa


def test_torch_is_imported_only_when_asked_for():
    from test_hostile import in_a_process

    in_a_process("import sys, kvant; assert 'torch' not in sys.modules and 'ml_dtypes' not in sys.modules")


def test_unknown_names():
    try:
        kvant.no_such_thing
    except AttributeError as error:
        assert "no_such_thing" in str(error)
    else:
        raise AssertionError("kvant.no_such_thing exists")
