// States of a worker that is alone.
package hvd_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"libhvd/hvd"
)

type history struct {
	steps  []byte
	panics bool
	refuse error
}

func (h *history) MarshalBinary() ([]byte, error) {
	if h.panics {
		panic("history panics on purpose")
	}
	return h.steps, nil
}

func (h *history) UnmarshalBinary(data []byte) error {
	h.steps = data
	return h.refuse
}

type counters struct {
	Step int64
	Rate [2]float64
}

// Everything in one object, whose other fields hold pointers that are not pinned.
type everything struct {
	worker  *hvd.Worker
	weights [4]float32
	step    int64
	bytes   [8]byte
	splits  [1]int64
	ranks   [1]int32
}

func (e *everything) MarshalBinary() ([]byte, error)    { return e.bytes[:], nil }
func (e *everything) UnmarshalBinary(data []byte) error { copy(e.bytes[:], data); return nil }

func TestMemoryBesidePointers(t *testing.T) {
	e := &everything{worker: alone(t)}
	state, err := e.worker.NewState()
	must(t, err)
	must(t, state.AddTensor("weights", hvd.Of(e.weights[:])))
	must(t, hvd.AddValue(state, "step", &e.step))
	must(t, state.AddObject("bytes", e))
	e.step, e.bytes[7], e.weights[3], e.splits[0] = 1, 2, 3, 4
	must(t, state.Commit())
	e.step, e.bytes[7], e.weights[3] = 0, 0, 0
	must(t, state.Restore())
	equal(t, []any{e.step, e.bytes[7], e.weights[3]}, []any{int64(1), byte(2), float32(3)})
	must(t, e.worker.Allreduce(background, "part", hvd.Of(e.weights[1:3]), hvd.Of(e.weights[1:3]), hvd.Sum))
	_, _, err = e.worker.Alltoall(background, "splits", hvd.Of(e.weights[:]), hvd.Splits(e.splits[:]...))
	must(t, err)
	_, err = e.worker.NewProcessSet("set", hvd.SetRanks, e.ranks[:]...)
	must(t, err)
	_, err = e.worker.BroadcastObject(background, "object", e.bytes[:], 0)
	must(t, err)
	sampler, err := e.worker.NewSampler(hvd.SamplerOptions{Samples: 1, BatchSize: 1})
	must(t, err)
	expect(t, sampler.UnmarshalBinary(e.bytes[:]), hvd.Invalid)
}

func TestRestoreGivesBackTheLastCommit(t *testing.T) {
	w := alone(t)
	state, err := w.NewState()
	must(t, err)
	weights, count, past := []float32{1, 2, 3}, counters{0, [2]float64{0.5, 0.25}}, &history{steps: []byte{1, 2}}
	must(t, state.AddTensor("weights", hvd.Of(weights)))
	must(t, hvd.AddValue(state, "counters", &count))
	must(t, state.AddObject("history", past))
	sampler, err := w.NewSampler(hvd.SamplerOptions{Samples: 10, BatchSize: 4, Seed: 1})
	must(t, err)
	must(t, state.AddSampler("sampler", sampler))
	expect(t, state.Restore(), hvd.Invalid)
	expect(t, state.AddTensor("weights", hvd.Of(weights)), hvd.Invalid, "weights")
	expect(t, state.AddTensor("shape", hvd.Of(weights).Reshape(2, 2)), hvd.Invalid)
	expect(t, state.AddTensor("", hvd.Of(weights)), hvd.Invalid, "key")
	expect(t, hvd.AddValue(state, "pointer", &[]*int{nil}[0]), hvd.Invalid, "pointers")
	expect(t, hvd.AddValue[int](state, "nil", nil), hvd.Invalid, "nil")
	expect(t, state.AddObject("nil", nil), hvd.Invalid, "nil")
	expect(t, state.Remove("missing"), hvd.Invalid, "missing")
	batch, err := sampler.Next(nil)
	must(t, err)
	equal(t, len(batch.Indices), 4)
	ahead, err := sampler.Next(batch)
	must(t, err)
	equal(t, ahead.Position, uint64(4))
	must(t, sampler.Record(batch))
	expect(t, sampler.Record(batch), hvd.Invalid)
	must(t, state.Commit())
	equal(t, state.Revision(), uint64(1))
	weights[1], count.Step, count.Rate[1], past.steps = 9, 9, 9, nil
	batch, err = sampler.Next(nil)
	must(t, err)
	must(t, sampler.Record(batch))
	must(t, state.Restore())
	equal(t, weights, []float32{1, 2, 3})
	equal(t, count, counters{0, [2]float64{0.5, 0.25}})
	equal(t, past.steps, []byte{1, 2})
	info, err := sampler.Info()
	must(t, err)
	equal(t, info.Processed, uint64(4))
	saved, err := sampler.MarshalBinary()
	must(t, err)
	must(t, sampler.SetEpoch(3))
	must(t, sampler.UnmarshalBinary(saved))
	expect(t, sampler.UnmarshalBinary(saved[1:]), hvd.Invalid)
	// Callbacks that fail or panic.
	past.panics = true
	expect(t, state.Commit(), hvd.CallbackFailed, "history panics on purpose")
	past.panics, past.refuse = false, errors.New("history refuses")
	err = state.Restore()
	expect(t, err, hvd.CallbackFailed, "history refuses")
	if !errors.Is(err, past.refuse) {
		t.Errorf("%v is not the callback's error", err)
	}
	past.refuse = nil
	must(t, state.Restore())
	must(t, state.Remove("weights"))
	must(t, state.Sync())
	statistics, err := state.Statistics()
	must(t, err)
	equal(t, statistics.Commits, uint64(1))
	state.Close()
	expect(t, state.Commit(), hvd.Closed, "state")
}

// An object that uses its state from within: the state is not another call's to have.
type meddler struct{ state *hvd.State }

func (m meddler) MarshalBinary() ([]byte, error)    { return nil, m.state.Save() }
func (m meddler) UnmarshalBinary(data []byte) error { return nil }

func TestAStateIsUsedByOneAtATime(t *testing.T) {
	w := alone(t)
	state, err := w.NewState()
	must(t, err)
	must(t, state.AddObject("meddler", meddler{state}))
	expect(t, state.Commit(), hvd.CallbackFailed, "one at a time")
	// From another goroutine than the one that made it, and from many.
	other, err := w.NewState()
	must(t, err)
	weights := make([]float32, 1000)
	must(t, other.AddTensor("weights", hvd.Of(weights)))
	var all sync.WaitGroup
	for range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 20 {
				if err := other.Save(); err != nil {
					expect(t, err, hvd.Invalid, "one at a time")
				}
			}
		}()
	}
	all.Wait()
	must(t, other.Save())
}

func TestACommitCopiesWhileTheProgramComputes(t *testing.T) {
	w, err := hvd.Init(background, &hvd.Options{Values: map[string]any{"check_commits": true}})
	must(t, err)
	t.Cleanup(w.Close)
	state, err := w.NewState()
	must(t, err)
	weights, step := make([]float32, 1<<16), int64(1)
	must(t, state.AddTensor("weights", hvd.Of(weights)))
	must(t, hvd.AddValue(state, "step", &step))
	must(t, state.CommitBegin())
	step = 2 // a value, which was saved at the beginning
	must(t, state.CommitEnd())
	weights[3] = 9
	must(t, state.Restore())
	equal(t, []any{weights[3], step}, []any{float32(0), int64(1)})
	must(t, state.CommitBegin())
	must(t, state.Commit()) // waits for the one before
	statistics, err := state.Statistics()
	must(t, err)
	equal(t, []any{statistics.Revision, statistics.Commits}, []any{uint64(3), uint64(3)})
}

func TestShardsOfAWorkerThatIsAlone(t *testing.T) {
	state, err := alone(t).NewState()
	must(t, err)
	shard, err := hvd.AddShard[float64](state, "m", 10, 0)
	must(t, err)
	equal(t, []any{shard.Offset(), len(shard.Data())}, []any{int64(0), 10})
	shard.Data()[9] = 3
	must(t, state.Commit())
	shard.Data()[9] = 4
	must(t, state.Restore())
	equal(t, []any{shard.Data()[9]}, []any{3.0})
	statistics, err := state.Statistics()
	must(t, err)
	equal(t, []any{statistics.ShardBytes, statistics.CopyBytes, statistics.FedBytes}, []any{uint64(80), uint64(0), uint64(0)})
	_, err = hvd.AddShard[float64](state, "m", 10, 0)
	expect(t, err, hvd.Invalid)
	_, err = hvd.AddShard[float64](state, "n", 10, 99)
	expect(t, err, hvd.Invalid)
	for _, parity := range []int{0, 1, 65} {
		_, err = hvd.AddShardWithParity[float64](state, "n", 10, parity)
		expect(t, err, hvd.Invalid, "expected the parity of 2 to 64 shards")
	}
	_, err = hvd.AddShardWithParity[float64](state, "n", 10, 3)
	must(t, err)
	must(t, state.Commit())
	offset, length, err := hvd.ShardRange(10, 3, 4)
	must(t, err)
	equal(t, []any{offset, length}, []any{int64(8), int64(2)})
	must(t, state.OnLost(func(sentence string) error { return nil }))
	state.Close()
}

func TestAnotherSliceTakesTheKeysPlace(t *testing.T) {
	state, err := alone(t).NewState()
	must(t, err)
	first, next := []float32{1, 2}, []float32{0, 0}
	must(t, state.AddTensor("w", hvd.Of(first)))
	must(t, state.AddTensor("empty", hvd.Of([]float32{})))
	shard, err := hvd.AddShard[float64](state, "m", 3, 0)
	must(t, err)
	shard.Data()[2] = 4
	must(t, state.Commit())
	must(t, state.SetTensor("w", hvd.Of(next)))
	must(t, state.SetTensor("empty", hvd.Of([]float32{})))
	before, moments := shard.Data(), []float64{9, 9, 9}
	must(t, shard.SetData(moments))
	first[0], before[2] = 7, 8
	must(t, state.Restore())
	equal(t, []any{first[0], next[0], next[1]}, []any{float32(7), float32(1), float32(2)})
	equal(t, []any{before[2], shard.Data()[2], moments[2], moments[0]}, []any{8.0, 4.0, 4.0, 0.0})
	next[0], moments[0] = 3, 5
	must(t, state.Commit())
	next[0], moments[0] = 0, 0
	must(t, state.Restore())
	equal(t, []any{next[0], moments[0]}, []any{float32(3), 5.0})
	expect(t, state.SetTensor("w", hvd.Of([]float32{1})), hvd.Invalid, `"w" is float32[1]`,
		"expected float32[2]")
	expect(t, state.SetTensor("w", hvd.Of([]int32{1, 2})), hvd.Invalid, "int32[2] in host memory")
	expect(t, state.SetTensor("none", hvd.Of(next)), hvd.Invalid, `no tensor "none"`)
	expect(t, shard.SetData(make([]float64, 2)), hvd.Invalid, "2 elements", "expected the 3")
	must(t, state.Remove("w"))
	expect(t, state.SetTensor("w", hvd.Of(next)), hvd.Invalid, `no tensor "w"`)
	runtime.GC()
	state.Close()
	expect(t, shard.SetData(moments), hvd.Closed)
}
