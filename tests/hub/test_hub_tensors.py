"""Rounding to bfloat16, against a slow formula, and the file format, against the `safetensors` library."""

import json
import struct
from fractions import Fraction
from pathlib import Path

import numpy
import pytest
from hub_stage import Floats
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from slipstream.errors import ConfigError
from slipstream.hub import Dtype
from slipstream.hub.tensors import Tensor, to_bfloat16, write_safetensors


def array(*values: float) -> Floats:
    return numpy.array(values, dtype=numpy.float32)


def exact(upper: int) -> Fraction:
    """The number that 16 bits mean; the one after the largest stands for infinity, as rounding takes it."""
    exponent, mantissa = (upper >> 7) & 0xFF, upper & 0x7F
    if exponent == 0:
        return Fraction(mantissa, 128) * Fraction(2) ** -126
    return (1 + Fraction(mantissa, 128)) * Fraction(2) ** (exponent - 127)


def nearest(value: float) -> int:
    """The nearest of the two neighbours, by exact arithmetic; a tie goes to the even one."""
    upper = struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    sign, low = upper & 0x8000, upper & 0x7FFF
    below, above = abs(Fraction(value)) - exact(low), exact(low + 1) - abs(Fraction(value))
    return int(sign | (low + 1 if above < below or (above == below and low % 2) else low))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(1.00390625)
@example(1.01171875)
@example(3.4028234663852886e38)
@example(-0.0)
def test_bfloat16_is_the_nearest_and_ties_go_to_even(value: float) -> None:
    assert int(to_bfloat16(array(value))[0]) == nearest(value)


def test_what_is_not_finite_stays_so_in_bfloat16() -> None:
    bits = numpy.array([0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF], dtype=numpy.uint32)
    found = (to_bfloat16(bits.view(numpy.float32)).astype(numpy.uint32) << 16).view(numpy.float32)
    assert numpy.isposinf(found[0]) and numpy.isneginf(found[1]) and numpy.isnan(found[2:]).all()


def tensor(name: str, values: Floats) -> Tensor:
    return Tensor(name=name, shape=values.shape, read=lambda: values)


def test_the_safetensors_library_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    values = {"a": array(1, 2, 3), "bb": numpy.arange(6, dtype=numpy.float32).reshape(2, 3)}
    seen: list[int] = []
    write_safetensors(path, [tensor(*item) for item in values.items()], Dtype.FLOAT32, on_bytes=seen.append)
    found = load_file(path)
    assert found.keys() == values.keys()
    for name in values:
        numpy.testing.assert_array_equal(found[name], values[name])
    assert seen == [12, 36]


def test_the_header_is_padded_so_that_the_data_is_aligned(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for length in range(1, 9):
        write_safetensors(path, [tensor("n" * length, array(1))], Dtype.FLOAT32, on_bytes=lambda num: None)
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        assert size % 8 == 0 and len(data) == 8 + size + 4
        assert json.loads(data[8 : 8 + size])["__metadata__"] == {"format": "pt"}


def test_a_value_that_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wide has values that float16 cannot hold: use bfloat16 or float32"):
        write_safetensors(tmp_path / "x", [tensor("wide", array(70_000))], Dtype.FLOAT16, on_bytes=lambda num: None)
