"""Before a worker is a member of its job: nothing is there, it joins later, nobody is there to join."""

import pytest

import hvd


def test_before_init(python):
    done = python("""
        import hvd
        assert not hvd.is_initialized()
        for call in (hvd.rank, hvd.barrier, lambda: hvd.allreduce(bytearray(1)), hvd.elastic.ObjectState):
            try:
                call()
            except hvd.InvalidError as error:
                print(error)
        hvd.shutdown()
    """)
    assert done.stdout == "hvd.init() has not been called\n" * 4


def test_an_init_that_joins_later(python):
    """It has no rank before; init(), connect() and elastic.run join, and a shutdown needs no job."""
    done = python("""
        import hvd, hvd.elastic, os
        hvd.init(connect=False)
        try:
            hvd.rank()
        except hvd.InvalidError as error:
            print(error)
        hvd.shutdown()
        first = hvd.init(connect=False)
        assert hvd.is_initialized() and hvd.init(connect=False) is hvd.init() is first and hvd.size() == 1
        hvd.shutdown()
        members = hvd.ProcessSet([0])
        hvd.init(connect=False, process_sets=[members]).connect()
        assert members.size() == 1
        hvd.shutdown()
        hvd.init(connect=False)
        state = hvd.elastic.ObjectState(step=7, sampler=hvd.elastic.ElasticSampler(4))
        state.step = 8
        state.restore()
        os.environ.pop("HOROVOD_SIZE", None)
        found = hvd.elastic.run(lambda state: (state.step, hvd.size(), os.environ["HOROVOD_SIZE"]))(state)
        assert found == (7, 1, "1"), found
        hvd.shutdown()
    """)
    assert done.stdout == "HVD_INVALID: the context has not joined a job: expected hvd_connect before\n"


def test_nobody_at_the_rendezvous():
    with pytest.raises(hvd.HvdError) as caught:
        hvd.Context(rank=1, size=2, rendezvous="127.0.0.1:1", secret="s" * 40, init_timeout=1.0,
                    connect_timeout=0.5)
    assert caught.value.status in (hvd.errors.TIMEOUT, hvd.errors.DRIVER_LOST, hvd.errors.UNAVAILABLE)
