"""The elastic sampler: shares, records, checkpoints and Horovod's."""

import pytest

import hvd
from hvd import elastic


class TestSampler:
    def test_each_sample_once(self, job):
        def rank(context):
            sampler = elastic.ElasticSampler(103, seed=4, batch_size=8, padding="none", context=context)
            seen = []
            for batch in sampler.batches():
                seen += batch.indices
                sampler.record(batch)
            assert sampler.info().remaining == 0
            return seen

        assert sorted(sum(job(3, rank), [])) == list(range(103))

    def test_as_horovod_uses_it(self, job):
        def rank(context):
            sampler = elastic.ElasticSampler(range(50), shuffle=True, seed=1, context=context)
            first = list(sampler)
            assert len(first) == len(sampler) == 25
            for batch in range(3):
                sampler.record_batch(batch, 4)
            assert sampler.info().processed == 24
            saved = sampler.state_dict()
            assert list(sampler) == first[12:]
            for batch in range(99):
                sampler.record_batch(batch, 4)
            assert len(sampler) == 0 and list(sampler) == []
            sampler.load_state_dict(saved)
            assert list(sampler) == first[12:]
            sampler.set_epoch(1)
            second = list(sampler)
            assert second != first and len(second) == 25
            return first

        both = job(2, rank)
        assert sorted(both[0] + both[1]) == list(range(50))

    def test_padding(self, job):
        def rank(context):
            return [
                len(list(elastic.ElasticSampler(10, padding=how, context=context)))
                for how in ("repeat", "none", "drop")
            ] + [
                len(elastic.ElasticSampler(10, padding=how, context=context))
                for how in ("repeat", "none", "drop")
            ]

        assert job(3, rank) == [[4, 4, 3, 4, 4, 3], [4, 3, 3, 4, 3, 3], [4, 3, 3, 4, 3, 3]]

    def test_in_a_state(self, alone):
        sampler = elastic.ElasticSampler(20, batch_size=5)
        state = elastic.ObjectState(sampler=sampler, epoch=0)
        sampler.record_batch(0, 5)
        state.commit()
        sampler.record_batch(1, 5)
        state.restore()
        assert sampler.info().processed == 5
        with pytest.raises(hvd.InvalidError, match="multiple"):
            sampler.record_batch(2, 3)

    def test_batches_of_horovods_scripts(self, job):
        """Each call counts, as in Horovod, however a script numbers its batches, and if the last is short."""

        def rank(context):
            sampler = elastic.ElasticSampler(40, seed=1, context=context)
            mine = list(sampler)
            for index, size, processed in ((0, 8, 16), (1, 8, 32), (2, 4, 40)):
                sampler.record_batch(index, size)
                assert sampler.processed_num == processed
            sampler.set_epoch(1)
            mine = list(sampler)
            sampler.record_batch(0, 8)
            sampler.reset()
            assert list(sampler) == mine[8:]
            sampler.record_batch(1 + 0, 4)  # an index that goes on after the reset
            assert list(sampler) == mine[12:]
            sampler.record_batch(0, 4)
            sampler.record_batch(0, 1)
            assert list(sampler) == mine[17:]
            sampler.record_batch(0, 8)  # what the script asked for, of which there are 3
            assert sampler.processed_num == 40
            rounds = elastic.ElasticSampler(40, batch_size=8, context=context)
            for size in (8, 8, 4):
                rounds.record_batch(0, size)
            assert rounds.processed_num == 40
            uneven = elastic.ElasticSampler(7, padding="none", context=context)
            for _ in range(2):
                uneven.record_batch(0, 2)
            assert uneven.processed_num == 7

        job(2, rank)

    def test_horovods_checkpoint_for_another_size(self, job):
        """Saved by 2 ranks after a batch of 8, and after the 3rd of 40 samples."""

        def rank(context):
            sampler = elastic.ElasticSampler(40, seed=1, batch_size=8, context=context)
            for processed, left in ((16, 24), (48, 0), (0, 40)):
                sampler.load_state_dict({"epoch": 2, "processed_num": processed})
                assert (sampler.epoch, sampler.info().remaining) == (2, left)
            whole = elastic.ElasticSampler(40, seed=1, padding="none", context=context)
            whole.load_state_dict({"epoch": 2, "processed_num": 16})
            return list(whole)

        left = job(3, rank)
        assert len(set(sum(left, []))) == sum(map(len, left)) == 24

    def test_wrong(self, alone):
        for wrong in ({"dataset": 0}, {"dataset": -1}, {"dataset": 5, "batch_size": 0},
                      {"dataset": 5, "padding": "x"}, {"dataset": 5, "seed": -1}):
            with pytest.raises(hvd.InvalidError):
                elastic.ElasticSampler(**wrong)
        sampler = elastic.ElasticSampler(5)
        with pytest.raises(hvd.InvalidError):
            sampler.load_state_dict({"saved": b"x" * 64})
        stale = sampler.next()
        sampler.record(stale)
        with pytest.raises(hvd.InvalidError):
            sampler.record(stale)
