"""Collectives among three workers, each in a thread."""

import numpy as np
import pytest

import hvd


def test_allreduce(job):
    def rank(context):
        mine = np.array([1.0, 2.0]) * (context.rank() + 1)
        return [
            context.allreduce(mine, op=op).tolist()
            for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)
        ]

    assert job(3, rank) == [[[6, 12], [2, 4], [1, 2], [3, 6], [6, 48]]] * 3


def test_factors(job):
    def rank(context):
        with pytest.raises(hvd.InvalidError, match="prescale_factor is 0"):
            context.allreduce(np.ones(1), prescale_factor=0)
        return context.allreduce(np.ones(1), "x", hvd.Sum, prescale_factor=0.5,
                                 postscale_factor=10.0).tolist()

    assert job(2, rank) == [[10.0]] * 2


def test_grouped(job):
    def rank(context):
        mine = [np.full(2, context.rank() + 1.0), np.array([context.rank()], np.int32)]
        sums = context.grouped_allreduce(mine, op=hvd.Sum)
        context.grouped_allreduce_(mine, op=hvd.Max)
        gathered = context.grouped_allgather([np.full((1,), context.rank()), np.ones((context.rank(), 2))])
        shares = context.grouped_reducescatter([np.arange(4), np.arange(2.0)], "shares", hvd.Sum)
        return ([a.tolist() for a in sums], [a.tolist() for a in mine], [a.shape for a in gathered],
                [a.tolist() for a in shares])

    for index, (sums, largest, shapes, shares) in enumerate(job(2, rank)):
        assert sums == [[3, 3], [1]] and largest == [[2, 2], [1]] and shapes == [(2,), (1, 2)]
        assert shares == [[[0, 2], [4, 6]][index], [[0], [2]][index]]


def test_a_group_of_nothing(job):
    """It waits for all ranks, as in C."""
    def rank(context):
        context.broadcast_variables([], 1)
        return [
            context.grouped_allreduce([], "sum", hvd.Average, prescale_factor=2.0),
            context.grouped_allreduce_async([], "later", hvd.Sum).wait(), context.grouped_allreduce_([]),
            context.grouped_allgather([], "rows"), context.grouped_allgather_async([]).wait()
        ]

    assert job(2, rank) == [[[]] * 5] * 2


def test_an_interrupt_behind_a_submission(alone, monkeypatch):
    """Ctrl-C as the library has the operation: it is abandoned, with its memory."""
    from hvd import _abi, _submit

    check, abandoned = _abi.check, []

    def interrupted(function, *arguments):
        check(function, *arguments)
        raise KeyboardInterrupt

    class Recorded:
        def __getattr__(self, name):
            return getattr(_abi.lib, name)

        def hvd_op_abandon(self, op, number, *rest):
            abandoned.append(_submit._memory.get(number))
            return _abi.lib.hvd_op_abandon(op, number, *rest)

    array = np.ones(3)
    monkeypatch.setattr(_submit, "_lib", Recorded())
    monkeypatch.setattr(_abi, "check", interrupted)
    before = len(_submit._memory)
    try:
        _submit._submit(alone._handle.pointer, 2, "x", (array, ), (array, ), False, 0, 1, 0, 1.0, 1.0, None, None,
                        None, False)
        assert False, "it was interrupted"
    except KeyboardInterrupt:
        pass
    assert len(abandoned) == 1 and abandoned[0][0][0].tensor.data == array.ctypes.data
    assert len(_submit._memory) == before


def test_broadcast(job):
    def rank(context):
        mine = np.full(3, context.rank())
        copy = context.broadcast(mine, 2)
        variables = [np.full(2, context.rank()), bytearray([context.rank()])]
        context.broadcast_variables(variables, 1)
        return mine[0], copy.tolist(), variables[0].tolist(), bytes(variables[1])

    assert job(3, rank) == [(i, [2, 2, 2], [1, 1], b"\x01") for i in range(3)]


def test_objects(job):
    def rank(context):
        mine = {"rank": context.rank(), 7: (1, None), "array": np.arange(3)} if context.rank() == 1 else None
        got = context.broadcast_object(mine, 1)
        everybody = context.allgather_object(["x" * context.rank(), context.rank()])
        pickled = context.broadcast_object(complex(1, 2) if context.rank() == 0 else None, 0, codec="pickle")
        return got["rank"], got[7], got["array"].tolist(), everybody, pickled

    assert job(3, rank) == [(1, (1, None), [0, 1, 2], [["", 0], ["x", 1], ["xx", 2]], 1 + 2j)] * 3


class Stubborn:
    """A codec that fails in a way of its own."""

    def dumps(self, thing):
        raise KeyError("mine")

    def loads(self, data):
        return data


@pytest.mark.parametrize("codec, match", [("json", "rank 1: object: the json codec takes no builtins.object"),
                                          (Stubborn(), "rank 1: the codec raised KeyError: 'mine'")])
def test_what_the_root_can_not_send_is_everybodys_error(job, codec, match):
    """And what comes after, without names, still meets."""

    def rank(context):
        with pytest.raises(hvd.InvalidError) as broadcast:
            context.broadcast_object(object(), 1, codec=codec)
        with pytest.raises(hvd.InvalidError) as gathered:
            context.allgather_object(object() if context.rank() == 1 else 1,
                                     codec=codec if context.rank() == 1 else "json")
        return str(broadcast.value), str(gathered.value), context.broadcast_object({"a": context.rank()}, 1)

    answers = job(3, rank)
    assert answers == [answers[0]] * 3 and answers[0][2] == {"a": 1}
    assert match in answers[0][0] and match in answers[0][1]


def test_what_fails_on_one_rank_alone_takes_no_number(job):
    def rank(context):
        wrong = [
            lambda: context.allreduce([1]), lambda: context.allreduce(np.ones(1), op=99),
            lambda: context.allreduce(np.ones(1), process_set=3),
            lambda: context.allreduce(np.ones(1, complex)),
            lambda: context.grouped_reducescatter([np.ones(2), np.ones((2, 2))[:, 0]]),
            lambda: context.broadcast_object(1, 2**40), lambda: context.broadcast(np.ones(1), 9)
        ]
        for call in wrong if context.rank() == 1 else ():
            with pytest.raises((hvd.InvalidError, TypeError)):
                call()
        return (context.allreduce(np.ones(1), op=hvd.Sum)[0], context.broadcast_object(context.rank(), 1),
                context.grouped_reducescatter([np.ones(2)], op=hvd.Sum)[0].tolist(),
                context.broadcast(np.full(1, context.rank()), 1)[0])

    assert job(2, rank) == [(2, 1, [2], 1)] * 2


def test_a_mismatch_of_unnamed_operations_counts_on_every_rank(job):
    """Whoever comes last may be told at once, by the submission itself."""

    def rank(context):
        for late in range(6):
            if context.rank() == late % 2:
                context.barrier(f"other has come {late}")
                with pytest.raises(hvd.MismatchError):
                    context.allgather(np.ones((2, 1)))
            else:
                handle = context.allgather_async(np.ones((2, 2)))
                context.barrier(f"other has come {late}")
                with pytest.raises(hvd.MismatchError):
                    handle.wait()
        return context.allgather(np.ones(1)).tolist()

    assert job(2, rank) == [[1, 1]] * 2


def test_ranks_with_different_codecs(job):
    def rank(context):
        if context.rank() == 0:
            return context.broadcast_object({"a": 1}, 0, "o", codec="pickle")
        with pytest.raises(hvd.InvalidError, match="do all ranks use the same one"):
            context.broadcast_object(None, 0, "o", codec="json")

    job(2, rank)


def test_gather_scatter_alltoall(job):
    def rank(context):
        me = context.rank()
        gathered = context.allgather(np.full((me, 2), me))
        share = context.reducescatter(np.arange(5.0), op=hvd.Sum)
        uneven = context.reducescatter(np.arange(4.0), "uneven", hvd.Sum, splits=[0, 1, 3])
        even = context.alltoall(np.arange(3) + 10 * me)
        rows, received = context.alltoall(np.arange(me + 1), [me + 1, 0, 0])
        return gathered[:,
                        0].tolist(), share.tolist(), uneven.tolist(), even.tolist(), rows.tolist(), received

    results = job(3, rank)
    assert [r[0] for r in results] == [[1, 2, 2]] * 3
    assert [r[1] for r in results] == [[0, 3], [6, 9], [12]]
    assert [r[2] for r in results] == [[], [0], [3, 6, 9]]
    assert [r[3] for r in results] == [[i, 10 + i, 20 + i] for i in range(3)]
    assert [r[4:] for r in results] == [([0, 0, 1, 0, 1, 2], [1, 2, 3]), ([], [0, 0, 0]), ([], [0, 0, 0])]


def test_join_lets_the_others_go_on(job):
    def rank(context):
        if context.rank() == 2:
            return [], context.join()
        averages = [context.allreduce(np.array([float(context.rank())]), f"step {i}")[0] for i in range(3)]
        return averages, context.join()

    results = job(3, rank)
    assert [averages for averages, _ in results] == [[0.5] * 3] * 2 + [[]]
    assert len({last for _, last in results}) == 1 and results[0][1] in (0, 1)


def test_adasum_is_refused_while_a_rank_has_joined(job):
    def rank(context):
        if context.rank() != 2:
            for _ in range(2):  # whatever is called next is answered, too
                with pytest.raises(hvd.UnsupportedError, match="1 of 3 ranks have joined"):
                    context.allreduce(np.ones(4, "float32"), "joined", hvd.Adasum)
        context.join()
        return context.allreduce(np.ones(4, "float32"), "after", hvd.Adasum).tolist()

    assert job(3, rank) == [[1.0] * 4] * 3


def test_process_sets(job):
    assert hvd.ProcessSet([2, 0]).ranks == [0, 2]  # before it is added, as in Horovod

    def rank(context):
        pair = context.add_process_set([0, 2])
        here = context.add_process_set(hvd.ProcessSet(rule="local"))
        assert pair.ranks == [0, 2] and pair.size() == 2 and here.size() == 3
        if pair.included():
            assert context.allreduce(np.ones(1), "x", hvd.Sum, process_set=pair)[0] == 2
        else:
            assert pair.rank() == -1
            with pytest.raises(hvd.InvalidError):
                context.allreduce(np.ones(1), "x", hvd.Sum, process_set=pair)
        assert context.allreduce(np.ones(1), "x", hvd.Sum, process_set=hvd.global_process_set)[0] == 3
        context.remove_process_set(pair)
        with pytest.raises(hvd.InvalidError, match="has not been added"):
            context.barrier(process_set=pair)
        return pair.name

    assert job(3, rank) == ["set 0,2"] * 3


def test_init_again(python):
    """The same context, with what it has; what it has not is said."""
    done = python("""
        import hvd
        everybody = hvd.ProcessSet([0], name="all")
        context = hvd.init(comm=[0], process_sets=[everybody], init_timeout=33)
        assert hvd.init() is context and hvd.init(init_timeout=33, process_sets="dynamic") is context
        like = hvd.ProcessSet([0], name="all")
        assert hvd.init(process_sets=[everybody, like]) is context
        assert like.size() == 1 and like.process_set_id == everybody.process_set_id == 1
        everything = hvd.global_process_set
        assert (everything.size(), everything.rank(), everything.ranks, everything.included()) == (1, 0, [0], True)
        assert everything.process_set_id == 0 and hvd.add_process_set([0]).process_set_id == 2
        for again in (lambda: hvd.init(process_sets=[hvd.ProcessSet([0], name="other")]), lambda: hvd.init([0, 1]),
                      lambda: hvd.init(init_timeout=34), lambda: hvd.init(process_sets="static"), lambda: hvd.init(3)):
            try:
                again()
            except hvd.InvalidError as error:
                print(error)
        assert hvd.remove_process_set(like) is False and hvd.remove_process_set(everybody) is True
        assert everybody.process_set_id is None and hvd.is_initialized()
    """)
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stdout
    for line, match in zip(lines, ("'other'", "expected all ranks, 0 to 0", "init_timeout=34", "'static'",
                                   "expected a list of all ranks")):
        assert match in line


def test_process_sets_that_are_wrong():
    for arguments in ({"ranks": [0], "rule": "local"}, {"ranks": None}, {"ranks": [0], "rule": "sometimes"}):
        with pytest.raises(hvd.InvalidError, match="rule"):
            hvd.ProcessSet(**arguments)


def test_a_mismatch_is_an_answer(job):
    def rank(context):
        with pytest.raises(hvd.MismatchError) as caught:
            context.allreduce(np.ones(1 + context.rank()), "x")
        context.allreduce(np.ones(1), "y")  # the context is as good as before
        return str(caught.value)

    first, second = job(2, rank)
    assert first == second and "HVD_MISMATCH" in first and "x" in first


def test_unnamed_operations_meet(job):
    def rank(context):
        return [context.allreduce(np.array([float(i)]), op=hvd.Sum)[0] for i in range(5)]

    assert job(2, rank) == [[0, 2, 4, 6, 8]] * 2


@pytest.mark.parametrize("name", ["", "hvd.mine", "n" * 300])
def test_names_that_are_wrong(alone, name):
    with pytest.raises(hvd.InvalidError, match="name"):
        hvd.allreduce(np.ones(1), name)


def test_other_wrong_arguments(alone):
    for call in (lambda: hvd.broadcast_(np.ones(1), 5), lambda: hvd.allreduce(np.ones(1), op=99),
                 lambda: hvd.alltoall(np.ones(3), [1]), lambda: hvd.allgather(np.float64(3) * np.ones(
                     ())), lambda: hvd.allreduce(np.ones(1), process_set=3),
                 lambda: hvd.grouped_allreduce([np.ones(1)], out=[]),
                 lambda: hvd.broadcast_object(1, codec="yaml"),
                 lambda: hvd.init().allreduce(np.ones(1), "a\0b" * 90)):
        with pytest.raises(hvd.InvalidError):
            call()


def test_between_two_ranks(job):
    """Each pair and direction has names of its own, and ranks that are in neither do nothing."""

    def rank(context):
        mine, other = context.rank(), 1 - context.rank()
        if mine == 2:
            return None
        room = np.zeros(3)
        with pytest.raises(hvd.InvalidError, match="rank"):
            context.send(room, mine, "x")
        sent = context.send_async(np.full(3, mine + 1.0), other)
        assert context.receive(room, other) is room and sent.wait() is None
        handle = context.receive_async(room, other, "x") if mine else context.send_async(room, other, "x")
        handle.wait()
        return room.tolist()

    assert job(3, rank) == [[2, 2, 2], [2, 2, 2], None]


def test_to_one_and_from_one(job):
    def rank(context):
        mine = np.array([[1.0, context.rank()]])
        total = context.reduce(mine, 1, op=hvd.Sum)
        context.reduce(mine, 2, "in place", hvd.Max, out=mine)
        rows = context.gather(mine, 1)
        things = context.gather_object({"rank": context.rank()}, 1)
        share = context.scatter(np.arange(6.0).reshape(3, 2), 1)
        rest = context.scatter(np.arange(6) if context.rank() == 0 else np.zeros(0, int), 0, splits=[1, 2, 3])
        room = np.zeros(1, int)
        context.scatter(np.arange(3) if context.rank() == 0 else None, 0, out=room)
        return [None if x is None else x.tolist() for x in (total, mine, rows, share, rest, room)], things

    results = job(3, rank)
    assert [r[0][0] for r in results] == [None, [[3.0, 3.0]], None]
    assert [r[0][1] for r in results] == [[[1.0, 0.0]], [[1.0, 1.0]], [[1.0, 2.0]]]
    assert [r[0][2] for r in results] == [None, [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], None]
    assert [r[0][3] for r in results] == [[[0.0, 1.0]], [[2.0, 3.0]], [[4.0, 5.0]]]
    assert [r[0][4] for r in results] == [[0], [1, 2], [3, 4, 5]] and [r[0][5]
                                                                       for r in results] == [[0], [1], [2]]
    assert [r[1] for r in results] == [None, [{"rank": 0}, {"rank": 1}, {"rank": 2}], None]


def test_objects_of_one_process_set(job):
    def rank(context):
        pair = context.add_process_set(hvd.ProcessSet([0, 2]))
        if context.rank() == 1:
            return None
        return (context.broadcast_object({"from": context.rank()}, 2, process_set=pair),
                context.gather_object(context.rank(), 2, process_set=pair),
                context.allgather_object(context.rank(), process_set=pair))

    assert job(3, rank) == [({"from": 2}, None, [0, 2]), None, ({"from": 2}, [0, 2], [0, 2])]
