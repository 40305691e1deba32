"""The json codec gives back what it was given, executes nothing, and refuses what is damaged."""

import pickle
import random
import struct

import numpy as np
import pytest

import hvd
from hvd.codec import codec_of

JSON = hvd.JsonCodec()


@pytest.mark.parametrize("thing", [
    None, True, 1, -(2**80), 1.5, float("inf"), "text \u00fc", [], [1, [2, None]], {}, {"a": {"b": []}}, (1, (2,)), {1, 2},
    frozenset([3]), b"\0bytes", bytearray(b"x"), {1: "a", (2, 3): "b"}, {"__hvd__": "dict"}, np.float32(1.5), np.int64(7),
])
def test_round_trip(thing):
    again = JSON.loads(JSON.dumps(thing))
    assert again == thing and type(again) is type(thing)


def test_arrays():
    given = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": [np.ones(0), np.array(3.0)], "c": np.ones(2, ">f8")}
    again = JSON.loads(JSON.dumps(given))
    assert again["a"].dtype == np.int16 and again["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    again["a"][0, 0] = 9  # it is one's own
    assert again["b"][0].shape == (0,) and again["b"][1] == 3 and again["c"].dtype == np.dtype(">f8")


def test_tensors():
    torch = pytest.importorskip("torch")
    given = {"step": torch.tensor(3.0), "m": torch.arange(6.0).reshape(2, 3).t(), "e": torch.ones(0, 2),
             "b": torch.ones(3, dtype=torch.bfloat16), "p": torch.nn.Parameter(torch.ones(2))}
    again = JSON.loads(JSON.dumps(given))
    for key, value in given.items():
        assert again[key].dtype == value.dtype and torch.equal(again[key], value.detach())


@pytest.mark.parametrize("thing", [object(), lambda: 1, {"deep": [1, object()]}, np.array([object()]), 1j])
def test_what_json_does_not_take(thing):
    with pytest.raises(hvd.InvalidError, match="codec='pickle' does"):
        JSON.dumps(thing)


def mutated(data, dice):
    """As a fuzzer would: bytes changed, cut, repeated, and the length of the text made to fit again."""
    head, text = data[:5], bytearray(data[13:])
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(text) + 1)
        choice = dice.randrange(6)
        if choice == 0:
            text[at:at + 1] = bytes([dice.randrange(256)])
        elif choice == 1:
            text[at:at] = dice.choice([b"[", b"{", b"}", b"]", b'"', b"-", b"1e999", b"9" * 40, b"null", b"true"])
        elif choice == 2:
            del text[at:at + dice.randrange(9)]
        elif choice == 3:
            end = min(len(text), at + dice.randrange(40))
            text[at:at] = text[at:end]
        elif choice == 4:
            text[at:at] = dice.choice([b'"__hvd__":"torch",', b'"__hvd__":"numpy",', b'"shape":[-1],', b'"at":-1,',
                                       b'"bytes":1e3,', b'"dtype":"O",', b'"dtype":"<f8",', b'"device":"cuda:9",'])
        else:
            text[at:at] = b"[" * dice.choice([3, 100000])
    length = len(text) if dice.random() < 0.8 else dice.randrange(2 * len(text) + 1)
    return head + struct.pack("<Q", length) + bytes(text)


def test_nothing_damaged_does_harm():
    """What is read is a value or InvalidError, and never anything else."""
    pytest.importorskip("numpy")
    seeds = [JSON.dumps({"a": np.arange(10), "b": (1, 2), 3: b"xyz"}), JSON.dumps([{"__hvd__": 1}, {1}, 1.5, None]),
             JSON.dumps(np.float32(2.5))]
    dice = random.Random(1)
    for _ in range(6000):
        try:
            JSON.loads(mutated(dice.choice(seeds), dice))
        except hvd.InvalidError:
            pass


def test_what_nests_too_deep_is_refused():
    text = b"[" * 100000 + b"]" * 100000
    with pytest.raises(hvd.InvalidError, match="RecursionError"):
        JSON.loads(b"hvdj\x01" + struct.pack("<Q", len(text)) + text)


def test_what_is_cut_off_is_no_shorter_value():
    data = JSON.dumps({"a": b"xyz"})
    for cut in range(len(data)):
        with pytest.raises(hvd.InvalidError):
            JSON.loads(data[:cut])


def test_pickles_are_refused_by_json():
    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    with pytest.raises(hvd.InvalidError, match="not made by the json codec"):
        JSON.loads(pickle.dumps(Evil()))


def test_choices():
    assert codec_of("pickle").loads(codec_of("pickle").dumps(1j)) == 1j
    for wrong in ("yaml", None, 3):
        with pytest.raises(hvd.InvalidError, match="expected 'json', 'pickle'"):
            codec_of(wrong)
