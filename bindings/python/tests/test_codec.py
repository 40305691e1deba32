"""The json codec gives back what it was given, executes nothing, and refuses what is damaged."""

import argparse
import collections
import datetime
import pathlib
import pickle
import random
import struct
import types

import numpy as np
import pytest

import hvd
from hvd.codec import codec_of

JSON = hvd.JsonCodec()
Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize("thing", [
    None, True, 1, -(2**80), 1.5,
    float("inf"), "text \u00fc", [], [1, [2, None]], {}, {"a": {"b": []}}, (1, (2, )), {1, 2},
    frozenset([3]), b"\0bytes",
    bytearray(b"x"), {1: "a", (2, 3): "b"}, {"__hvd__": "dict"},
    np.float32(1.5),
    np.int64(7),
    np.bool_(True),
    np.complex64(1j),
    np.str_("n"),
    np.bytes_(b"n\0m"),
    np.datetime64("2026-11-22"),
    np.timedelta64(3, "s"),
    np.dtype("f4"), 1j,
    range(1, 9, 2),
    slice(1, None),
    collections.deque([1, (2, )], 5),
    collections.OrderedDict([("b", 1), (2, {"a": ()})]),
    collections.Counter({"a": 2, (1, ): -1}),
    collections.defaultdict(list, {3: [1], "b": []}),
    collections.defaultdict(None, {"a": collections.defaultdict(int)}),
    argparse.Namespace(lr=0.1, path=pathlib.Path("/x")),
    types.SimpleNamespace(a=[1]),
    pathlib.Path("a/b"),
    pathlib.PureWindowsPath("c:/x"),
    Point(1, [2]),
    datetime.datetime(2026, 11, 22, 17, 5, 6, 7),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    datetime.date(2026, 1, 2),
    datetime.time(3, 4),
    datetime.timedelta(days=-1, seconds=5, microseconds=6),
])
def test_round_trip(thing):
    again = JSON.loads(JSON.dumps(thing))
    assert again == thing and type(again) is type(thing)


def test_arrays():
    given = {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": [np.ones(0), np.array(3.0)],
        "c": np.ones(2, ">f8")
    }
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


def test_containers_keep_what_they_make():
    again = JSON.loads(JSON.dumps(collections.defaultdict(list, a=[1])))
    again["new"].append(2)
    assert again == {"a": [1], "new": [2]}
    assert JSON.loads(JSON.dumps(collections.Counter("aab"))).most_common(1) == [("a", 2)]
    data = JSON.dumps(collections.defaultdict(list, a=[1]))
    for other in (b'"eval"', b'"type"', b'["x"]'):  # nothing else is called, whatever the bytes say
        with pytest.raises(hvd.InvalidError, match="damaged"):
            JSON.loads(data.replace(b'"list"', other.ljust(6)))


def test_a_defaultdict_in_a_state(alone):
    state = hvd.elastic.ObjectState(history=collections.defaultdict(list))
    state.commit()
    state.restore()
    state.history["new"].append(1)
    assert state.history == {"new": [1]}


class Words(list):
    pass


class Numbers(dict):
    pass


class Ordered(collections.OrderedDict):
    pass


class Count(int):
    pass


class Text(str):
    pass


class Raw(bytes):
    pass


@pytest.mark.parametrize("thing", [
    Words([1]),
    Numbers(a=1),
    Ordered(a=1),
    Count(1),
    Text("a"),
    Raw(b"a"),
    np.ma.masked_array([1, 2], [True, False]),
    np.array([(1, )], [("a", int)]).view(np.recarray)
], ids=lambda thing: type(thing).__name__)
def test_subclasses_are_refused_by_name(thing):
    with pytest.raises(hvd.InvalidError, match=f"takes no .*{type(thing).__name__}"):
        JSON.dumps({"deep": [thing]})
    with pytest.raises(hvd.InvalidError, match="a defaultdict of <function"):
        JSON.dumps(collections.defaultdict(lambda: thing))


def test_what_a_tensor_is_besides_its_values():
    torch = pytest.importorskip("torch")
    given = {
        "plain": torch.ones(2), "leaf": torch.ones(2, requires_grad=True),
        "turned": torch.ones(2, 3).t().requires_grad_(), "empty": torch.ones(0, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
    }
    again = JSON.loads(JSON.dumps(given))
    for key, value in given.items():
        assert type(again[key]) is type(value) and again[key].is_leaf
        assert again[key].requires_grad == value.requires_grad
    assert not JSON.loads(JSON.dumps(given["leaf"] * 2)).requires_grad  # its graph is not kept
    text = (b'{"__hvd__":"torch","at":0,"bytes":4,"dtype":"float32","shape":[1],"device":"cpu"}')
    older = JSON.loads(b"hvdj\x01" + struct.pack("<Q", len(text)) + text + struct.pack("<f", 3))
    assert older.item() == 3 and not older.requires_grad
    with pytest.raises(hvd.InvalidError, match="takes no .*Elsewhere"):
        JSON.dumps(torch.ones(1).as_subclass(type("Elsewhere", (torch.Tensor, ), {})))


def test_types_of_pytorch():
    torch = pytest.importorskip("torch")
    for thing in (torch.float16, torch.Size([2, 3]), torch.device("cpu"), torch.ones(2, 3).shape):
        again = JSON.loads(JSON.dumps(thing))
        assert again == thing and type(again) is type(thing)
    with pytest.raises(hvd.InvalidError, match="dense tensors"):
        JSON.dumps(torch.ones(2).to_sparse())


def test_a_namedtuple_that_is_not_loaded_here():
    """It has its fields, and no code comes with it; a class by that name whose fields differ is not taken for
    it."""
    unknown = collections.namedtuple("Unknown", "a b")
    unknown.__module__ = "nowhere"
    again = JSON.loads(JSON.dumps(unknown(1, b"x")))
    assert again == (1, b"x") and again._asdict() == {"a": 1, "b": b"x"} and type(again).__name__ == "Unknown"
    impostor = collections.namedtuple("Point", "y x")
    impostor.__module__ = __name__
    assert type(JSON.loads(JSON.dumps(impostor(1, 2)))) is not Point
    with pytest.raises(hvd.InvalidError, match="damaged"):
        JSON.loads(JSON.dumps(Point(1, 2)).replace(b'"x"', b'" "'))


def nested(depth):
    thing = []
    for _ in range(depth):
        thing = [thing]
    return thing


def test_too_deep_and_too_large_are_invalid():
    loop = []
    loop.append(loop)
    for thing in (nested(100_000), loop, 10**5000):
        with pytest.raises(hvd.InvalidError):
            JSON.dumps(thing)
    text = b"[" * 100_000 + b"]" * 100_000
    for text in (
            text, b"9" * 5000,
            b'{"__hvd__":"torch","at":0,"bytes":0,"dtype":"float32","shape":[1099511627776],"device":"cpu"}',
            b'{"__hvd__":"numpy","at":0,"bytes":0,"dtype":"<U0","shape":[1099511627776]}',
            b'{"__hvd__":"timedelta","items":[1e300,0,0]}', b'{"__hvd__":"range","items":[1,2,0]}'):
        with pytest.raises(hvd.InvalidError, match="damaged"):
            JSON.loads(b"hvdj\x01" + len(text).to_bytes(8, "little") + text)


class Counted(bytes):
    """Bytes that count how often their length is asked for."""

    asked = 0

    def __len__(self):
        Counted.asked += 1
        return super().__len__()


def test_many_arrays_are_looked_at_once():
    """A thousand times the arrays take a thousand times the work, not a million times."""
    from hvd.codec import _Blobs

    blobs = _Blobs()
    for _ in range(1000):
        blobs.add("bytes", Counted(b"x"))
    assert blobs.size == 1000 and Counted.asked <= 3000


def test_one_setting_for_a_program(alone):
    assert hvd.set_codec("pickle") is None
    try:
        assert codec_of(None) is codec_of("pickle") and hvd.broadcast_object(type, 0) is type
        state = hvd.elastic.ObjectState(kind=type)
        state.commit()
        state.kind = None
        state.restore()
        assert state.kind is type
    finally:
        hvd.set_codec("json")
    with pytest.raises(hvd.InvalidError, match="expected 'json'"):
        hvd.set_codec("yaml")


@pytest.mark.parametrize("thing", [object(), lambda: 1, {"deep": [1, object()]}, np.array([object()]), type])
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
            text[at:at] = dice.choice(
                [b"[", b"{", b"}", b"]", b'"', b"-", b"1e999", b"9" * 40, b"null", b"true"])
        elif choice == 2:
            del text[at:at + dice.randrange(9)]
        elif choice == 3:
            end = min(len(text), at + dice.randrange(40))
            text[at:at] = text[at:end]
        elif choice == 4:
            text[at:at] = dice.choice([
                b'"__hvd__":"torch",', b'"__hvd__":"numpy",', b'"shape":[-1],', b'"at":-1,', b'"bytes":1e3,',
                b'"dtype":"O",', b'"dtype":"<f8",', b'"device":"cuda:9",'
            ])
        else:
            text[at:at] = b"[" * dice.choice([3, 100000])
    length = len(text) if dice.random() < 0.8 else dice.randrange(2 * len(text) + 1)
    return head + struct.pack("<Q", length) + bytes(text)


def test_nothing_damaged_does_harm():
    """What is read is a value or InvalidError, and never anything else."""
    pytest.importorskip("numpy")
    seeds = [
        JSON.dumps({"a": np.arange(10), "b": (1, 2), 3: b"xyz"}),
        JSON.dumps([{"__hvd__": 1}, {1}, 1.5, None]),
        JSON.dumps(np.float32(2.5))
    ]
    dice = random.Random(1)
    for _ in range(6000):
        try:
            JSON.loads(mutated(dice.choice(seeds), dice))
        except hvd.InvalidError:
            pass


def test_what_nests_too_deep_is_refused():
    text = b"[" * 100000 + b"]" * 100000
    with pytest.raises(hvd.InvalidError, match="damaged|deep|nest"):
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
    for wrong in ("yaml", 3):
        with pytest.raises(hvd.InvalidError, match="expected 'json', 'pickle'"):
            codec_of(wrong)
