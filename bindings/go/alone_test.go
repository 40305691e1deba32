package hvd_test

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"libhvd/hvd"
)

var background = context.Background()

func alone(t *testing.T) *hvd.Worker {
	t.Helper()
	w, err := hvd.Init(background, nil)
	must(t, err)
	t.Cleanup(w.Close)
	return w
}

// pair is two workers of one job, both in this process.
func pair(t *testing.T) (first, second *hvd.Worker) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	must(t, listener.Close())
	workers, problems := [2]*hvd.Worker{}, [2]error{}
	var all sync.WaitGroup
	for rank := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			workers[rank], problems[rank] = hvd.Init(background, &hvd.Options{Values: map[string]any{"rank": rank, "size": 2,
				"rendezvous": address, "secret": strings.Repeat("s", 32), "operation_timeout": 30.0}})
		}()
	}
	all.Wait()
	must(t, errors.Join(problems[:]...))
	t.Cleanup(workers[0].Close)
	t.Cleanup(workers[1].Close)
	return workers[0], workers[1]
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, err error, status hvd.Status, names ...string) {
	t.Helper()
	if !errors.Is(err, status) {
		t.Errorf("got %v, expected %v", err, status)
		return
	}
	for _, name := range names {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %q", err, name)
		}
	}
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, expected %v", got, want)
	}
}

func slice[T hvd.Element](t *testing.T, b *hvd.Buffer, err error) []T {
	t.Helper()
	must(t, err)
	s, err := hvd.Slice[T](b)
	must(t, err)
	return s
}

func TestEveryCollective(t *testing.T) {
	w := alone(t)
	m, err := w.Membership()
	must(t, err)
	equal(t, m.Size, 1)
	b, err := w.Backend()
	must(t, err)
	equal(t, b.Name, "self")
	in, out := []float32{1, 2, 3}, make([]float32, 3)
	must(t, w.Allreduce(background, "sum", hvd.Of(in), hvd.Of(out), hvd.Sum))
	equal(t, out, in)
	must(t, w.Allreduce(background, "scaled", hvd.Of(out), hvd.Of(out), hvd.Average, hvd.Prescale(2), hvd.Postscale(0.5)))
	equal(t, out, in)
	a, c := []int64{1, 2}, []float64{3}
	must(t, w.GroupedAllreduce(background, "group", []hvd.Tensor{hvd.Of(a), hvd.Of(c)}, []hvd.Tensor{hvd.Of(a), hvd.Of(c)}, hvd.Max))
	must(t, w.Broadcast(background, "broadcast", hvd.Of(a), 0))
	must(t, w.BroadcastVariables(background, "variables", []hvd.Tensor{hvd.Of(a), hvd.Of(c)}, 0))
	rows := hvd.Of([]uint8{1, 2, 3, 4, 5, 6}).Reshape(3, 2)
	gathered, err := w.Allgather(background, "gather", rows)
	equal(t, slice[uint8](t, gathered, err), []uint8{1, 2, 3, 4, 5, 6})
	equal(t, gathered.Shape(), []int{3, 2})
	_, err = hvd.Slice[float32](gathered)
	expect(t, err, hvd.Invalid, "uint8", "float32")
	room := make([]uint8, 8)
	into := hvd.Of(room).Reshape(4, 2)
	n, err := w.AllgatherInto(background, "gather into", rows, into)
	must(t, err)
	equal(t, n, 3)
	equal(t, room, []uint8{1, 2, 3, 4, 5, 6, 0, 0})
	buffers, err := w.GroupedAllgather(background, "gathers", []hvd.Tensor{rows, hvd.Of(c)})
	must(t, err)
	equal(t, slice[float64](t, buffers[1], nil), c)
	share, err := w.Reducescatter(background, "scatter", rows, hvd.Sum, hvd.Splits(3))
	equal(t, len(slice[uint8](t, share, err)), 6)
	n, err = w.ReducescatterInto(background, "scatter into", rows, into, hvd.Sum)
	must(t, err)
	equal(t, n, 3)
	output, received, err := w.Alltoall(background, "exchange", rows, hvd.Splits(3))
	equal(t, len(slice[uint8](t, output, err)), 6)
	equal(t, received, []int64{3})
	n, received, err = w.AlltoallInto(background, "exchange into", rows, into)
	must(t, err)
	equal(t, n, 3)
	equal(t, received, []int64{3})
	must(t, w.Barrier(background, "barrier"))
	object, err := w.BroadcastObject(background, "object", []byte("object"), 0)
	must(t, err)
	equal(t, string(object), "object")
	op, err := w.StartAllgather(background, "started", hvd.Of(a))
	must(t, err)
	must(t, op.Wait(background))
	must(t, op.Wait(background))
	buffer, err := op.Output(0)
	equal(t, slice[int64](t, buffer, err), a)
	_, err = op.LastJoined()
	expect(t, err, hvd.Invalid, "no join")
	last, err := w.Join(background)
	must(t, err)
	equal(t, last, 0)
	must(t, w.Shutdown(background))
	must(t, w.Shutdown(background))
}

func echo[T hvd.Element](t *testing.T, w *hvd.Worker, value T) {
	t.Helper()
	in, out := []T{value, value}, make([]T, 2)
	must(t, w.Allreduce(background, "echo", hvd.Of(in), hvd.Of(out), hvd.Max))
	equal(t, out, in)
}

func TestEveryDtypeAndShape(t *testing.T) {
	w := alone(t)
	echo(t, w, uint8(1))
	echo(t, w, int8(-1))
	echo(t, w, uint16(2))
	echo(t, w, int16(-2))
	echo(t, w, uint32(3))
	echo(t, w, int32(-3))
	echo(t, w, uint64(4))
	echo(t, w, int64(-4))
	echo(t, w, hvd.NewFloat16(1.5))
	echo(t, w, hvd.NewBFloat16(2.5))
	echo(t, w, float32(0.5))
	echo(t, w, float64(0.25))
	echo(t, w, true)
	number := 2.5
	must(t, w.Allreduce(background, "scalar", hvd.Scalar(&number), hvd.Scalar(&number), hvd.Sum))
	equal(t, number, 2.5)
	var nothing []float32
	must(t, w.Allreduce(background, "nothing", hvd.Of(nothing), hvd.Of(nothing), hvd.Sum))
	// Memory that is not Go's.
	mapped, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	must(t, err)
	mapped[7] = 7
	must(t, w.Allreduce(background, "mapped", hvd.Of(mapped), hvd.Of(mapped), hvd.Sum))
	equal(t, mapped[7], byte(7))
	must(t, syscall.Munmap(mapped))
}

func TestBackendsAreToldOf(t *testing.T) {
	all, err := hvd.Backends(nil)
	must(t, err)
	found := false
	for _, backend := range all {
		found = found || backend.Name == "self" && backend.Usable
	}
	equal(t, found, true)
	w := alone(t)
	name, _, err := w.BackendChoice(hvd.HostMemory, hvd.Float32Type, hvd.AllreduceCollective)
	must(t, err)
	equal(t, name, "self")
	_, _, err = w.BackendChoice(hvd.CUDAMemory, hvd.Float32Type, hvd.AllreduceCollective)
	expect(t, err, hvd.Unsupported)
	device := hvd.OnDevice(4096, hvd.Float32Type, 0, 0, 2, 2)
	expect(t, w.Allreduce(background, "device", device, device, hvd.Sum), hvd.Unsupported)
	expect(t, w.Allreduce(background, "device", hvd.OnDevice(4096, 99, 0, 0, 2), device, hvd.Sum), hvd.Invalid, "dtype")
}

func TestHalvesRoundToNearestEven(t *testing.T) {
	for bits := range 1 << 16 {
		if half := hvd.Float16(bits); half.Float32() == half.Float32() && hvd.NewFloat16(half.Float32()) != half {
			t.Fatalf("half %#x", bits)
		}
		if brain := hvd.BFloat16(bits); brain.Float32() == brain.Float32() && hvd.NewBFloat16(brain.Float32()) != brain {
			t.Fatalf("bfloat %#x", bits)
		}
	}
	equal(t, hvd.NewFloat16(2049).Float32(), float32(2048))
	equal(t, hvd.NewFloat16(2051).Float32(), float32(2052))
	equal(t, hvd.NewFloat16(65520).Float32(), float32(math.Inf(1)))
	equal(t, hvd.NewFloat16(0x1.8p-25).Float32(), float32(0x1p-24))
	equal(t, hvd.NewFloat16(0x1p-25).Float32(), float32(0))
	equal(t, hvd.NewBFloat16(1+0x1p-8).Float32(), float32(1))
}

func TestBadInputIsAnError(t *testing.T) {
	w := alone(t)
	floats, doubles := hvd.Of(make([]float32, 4)), hvd.Of(make([]float64, 4))
	reduce := func(name string, in, out hvd.Tensor, options ...hvd.Option) error {
		return w.Allreduce(background, name, in, out, hvd.Sum, options...)
	}
	expect(t, reduce("dtype", floats, doubles), hvd.Invalid, "float32", "float64")
	expect(t, reduce("length", floats, hvd.Of(make([]float32, 3))), hvd.Invalid, "4", "3")
	expect(t, reduce("shape", floats.Reshape(2, 3), floats), hvd.Invalid, "[2 3]", "4 elements")
	expect(t, reduce("shape", floats.Reshape(-2, -2), floats), hvd.Invalid, "4 elements")
	expect(t, reduce("shape", floats.Reshape(math.MaxInt, 8), floats), hvd.Invalid, "4 elements")
	expect(t, reduce("dims", floats.Reshape(1, 1, 1, 1, 1, 1, 1, 1, 4), floats), hvd.Invalid, "at most 8")
	expect(t, reduce("strides", floats.Strided([]int{2, 2}, []int{1, 2}), floats), hvd.Invalid, "not contiguous")
	expect(t, reduce("strides", floats.Strided([]int{2, 2}, []int{2}), floats), hvd.Invalid, "not contiguous")
	expect(t, reduce("empty", hvd.Tensor{}, floats), hvd.Invalid, "empty")
	expect(t, reduce("nil", hvd.Scalar[float32](nil), floats), hvd.Invalid, "nil")
	expect(t, reduce("", floats, floats), hvd.Invalid, "name")
	expect(t, reduce("a\x00b", floats, floats), hvd.Invalid, "NUL")
	expect(t, reduce("hvd.x", floats, floats), hvd.Invalid, "hvd.")
	expect(t, reduce(strings.Repeat("x", 256), floats, floats), hvd.Invalid, "255")
	expect(t, reduce("factor", floats, floats, hvd.Prescale(math.NaN())), hvd.Invalid, "scale")
	expect(t, w.Allreduce(background, "reduction", floats, floats, 99), hvd.Invalid, "99")
	expect(t, w.Broadcast(background, "root", floats, 1), hvd.Invalid, "root")
	expect(t, w.Broadcast(background, "root", floats, 1<<32), hvd.Invalid, "root", "4294967296")
	_, err := w.BroadcastObject(background, "root", nil, 1<<32)
	expect(t, err, hvd.Invalid, "root", "4294967296")
	expect(t, reduce("priority", floats, floats, hvd.Priority(1<<40)), hvd.Invalid, "priority")
	expect(t, reduce("device", hvd.OnDevice(4096, hvd.Float32Type, 1<<32, 0, 4), floats), hvd.Invalid, "device")
	_, _, err = w.Alltoall(background, "splits", floats, hvd.Splits(5))
	expect(t, err, hvd.Invalid, "5", "4")
	_, err = w.AllgatherInto(background, "room", doubles.Reshape(4, 1), hvd.Of(make([]float64, 2)).Reshape(2, 1))
	expect(t, err, hvd.Invalid, "2")
	expect(t, w.GroupedAllreduce(background, "group", []hvd.Tensor{floats}, []hvd.Tensor{floats, doubles}, hvd.Sum),
		hvd.Invalid, "1 inputs and 2 outputs")
	_, err = w.NewProcessSet("set", hvd.SetWorkers, 3)
	expect(t, err, hvd.Invalid, "3")
	set, err := w.NewProcessSet("all", hvd.SetWorkers, 0)
	must(t, err)
	must(t, w.Barrier(background, "on a set", hvd.On(set)))
	ranks, err := set.Ranks()
	must(t, err)
	equal(t, ranks, []int32{0})
	expect(t, alone(t).Barrier(background, "another's set", hvd.On(set)), hvd.Invalid, "another worker")
	set.Close()
	set.Close()
	expect(t, w.Barrier(background, "closed set", hvd.On(set)), hvd.Closed, "process set")
	_, err = set.Info()
	expect(t, err, hvd.Closed)
	for _, values := range []map[string]any{{"no_such_key": 1}, {"np": "many"}, {"np": 1.5}, {"a\x00": 1}, {"restart": 7}} {
		_, err = hvd.Init(background, &hvd.Options{Values: values})
		expect(t, err, hvd.Invalid)
	}
	var none *hvd.Worker
	expect(t, none.Barrier(background, "nil"), hvd.Invalid, "nil")
	none.Close()
	var nothing *hvd.Op
	expect(t, nothing.Wait(background), hvd.Invalid, "nil")
	must(t, w.Barrier(background, "all is well"))
}

func TestAfterShutdownAndCloseCallsAreClosed(t *testing.T) {
	for _, how := range []string{"shutdown", "close", "abort"} {
		w := alone(t)
		state, err := w.NewState()
		must(t, err)
		step := 0
		must(t, hvd.AddValue(state, "step", &step))
		sampler, err := w.NewSampler(hvd.SamplerOptions{Samples: 4, BatchSize: 2})
		must(t, err)
		events, err := w.Events(hvd.EventAll)
		must(t, err)
		op, err := w.StartBarrier(background, "before")
		must(t, err)
		must(t, op.Wait(background))
		switch how {
		case "shutdown":
			must(t, w.Shutdown(background))
		case "close":
			w.Close()
			w.Close()
			for range events.C { // closed
			}
			expect(t, op.Wait(background), hvd.Closed)
			if op.Done() {
				t.Error("done, though the worker is closed")
			}
		case "abort":
			must(t, w.Abort("test"))
		}
		expect(t, w.Barrier(background, "late"), hvd.Closed)
		_, err = w.StartAllreduce(background, "late", hvd.Of([]float32{1}), hvd.Of([]float32{1}), hvd.Sum)
		expect(t, err, hvd.Closed)
		expect(t, state.Commit(), hvd.Closed)
		if how != "abort" {
			_, err = w.Membership()
			expect(t, err, hvd.Closed)
			equal(t, w.Rank(), -1)
			_, err = sampler.Next(nil)
			expect(t, err, hvd.Closed)
			expect(t, state.Run(background, func(context.Context) error { return nil }), hvd.Closed)
			_, err = w.Events(hvd.EventAll)
			expect(t, err, hvd.Closed)
		}
		events.Close()
		state.Close()
		sampler.Close()
	}
}

func TestCloseWhileOthersCall(t *testing.T) {
	for range 20 {
		w := alone(t)
		var all sync.WaitGroup
		for i := range 4 {
			all.Add(1)
			go func() {
				defer all.Done()
				x := []float32{1}
				for {
					if err := w.Allreduce(background, "goroutine "+strconv.Itoa(i), hvd.Of(x), hvd.Of(x), hvd.Sum); err != nil {
						expect(t, err, hvd.Closed)
						return
					}
				}
			}()
		}
		w.Close()
		all.Wait()
	}
}

func TestAfterAForkCallsAreErrors(t *testing.T) {
	w := alone(t)
	state, err := w.NewState()
	must(t, err)
	set, err := w.NewProcessSet("all", hvd.SetWorkers, 0)
	must(t, err)
	driver, err := hvd.NewDriver(&hvd.Options{Values: map[string]any{"hosts": "localhost:1"}})
	must(t, err)
	t.Cleanup(driver.Close)
	sampler, err := w.NewSampler(hvd.SamplerOptions{Samples: 4, BatchSize: 2})
	must(t, err)
	events, err := w.Events(hvd.EventAll)
	must(t, err)
	x := []float32{1}
	op, err := w.StartAllreduce(background, "before", hvd.Of(x), hvd.Of(x), hvd.Sum)
	must(t, err)
	inTime, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	// The child is one thread of the parent: it makes calls that fail at once, and ends. A collector would wait for the
	// other threads.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	child, _, errno := syscall.RawSyscall(syscall.SYS_FORK, 0, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	if child == 0 {
		code := uintptr(0)
		for i, err := range []error{
			w.Barrier(background, "child"), state.Commit(), driver.Start(), w.Abort("child"),
			func() error { _, err := set.Ranks(); return err }(),
			func() error { _, err := w.Membership(); return err }(),
			func() error { _, err := sampler.Next(nil); return err }(),
			func() error { _, err := op.Output(0); return err }(),
			func() error { _, err := w.NewState(); return err }(),
			func() error { _, err := w.Events(hvd.EventAll); return err }(),
			op.Wait(background), op.Wait(inTime), state.Restore(), driver.Stop("child"), w.Shutdown(background),
			state.Run(background, func(context.Context) error { return nil }),
		} {
			if e, ok := err.(*hvd.Error); !ok || e.Status != hvd.Invalid {
				code = uintptr(i) + 1
			}
		}
		if op.Done() {
			code = 100
		}
		events.Close()
		set.Close()
		sampler.Close()
		state.Close()
		driver.Close()
		w.Close() // all of them leave the parent's alone
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, code, 0, 0)
	}
	var status syscall.WaitStatus
	for {
		if _, err = syscall.Wait4(int(child), &status, 0, nil); err != syscall.EINTR {
			break
		}
	}
	must(t, err)
	equal(t, status.ExitStatus(), 0)
	must(t, op.Wait(background))
	must(t, state.Commit())
	must(t, w.Barrier(background, "all is well"))
	must(t, w.Shutdown(background))
}

// What nobody refers to any more is not collected before the operation that reads and writes it has completed.
func TestMemoryIsKeptUntilTheOperationHasCompleted(t *testing.T) {
	first, second := pair(t)
	const n = 1 << 16
	func() {
		data := slices.Repeat([]float32{1}, n)
		_, err := first.StartAllreduce(background, "x", hvd.Of(data), hvd.Of(data), hvd.Sum)
		must(t, err)
	}()
	var others [][]float32
	for range 8 {
		runtime.GC()
		others = append(others, slices.Repeat([]float32{7}, n))
	}
	mine := slices.Repeat([]float32{2}, n)
	must(t, second.Allreduce(background, "x", hvd.Of(mine), hvd.Of(mine), hvd.Sum))
	var both sync.WaitGroup
	both.Add(1)
	go func() { defer both.Done(); _ = first.Barrier(background, "behind it") }()
	must(t, second.Barrier(background, "behind it"))
	both.Wait()
	equal(t, [2]float32{mine[0], mine[n-1]}, [2]float32{3, 3})
	for _, other := range others {
		if slices.Max(other) != 7 || slices.Min(other) != 7 {
			t.Fatal("the operation wrote into memory that was another's")
		}
	}
}

func TestAnOperationUnderWayEndsWithItsWorker(t *testing.T) {
	first, second := pair(t)
	x := []float32{1}
	op, err := first.StartAllreduce(background, "x", hvd.Of(x), hvd.Of(x), hvd.Sum)
	must(t, err)
	inTime, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	ends := make(chan error)
	for _, ctx := range []context.Context{background, inTime} {
		go func() { ends <- op.Wait(ctx) }()
	}
	must(t, first.Abort("enough"))
	expect(t, <-ends, hvd.Closed)
	expect(t, <-ends, hvd.Closed)
	first.Close()
	expect(t, op.Wait(background), hvd.Closed)
	_, err = op.Output(0)
	expect(t, err, hvd.Closed)
	expect(t, second.Barrier(background, "alone now"), hvd.PeerLost)
}

func TestWhatCameOutOutlivesItsWorker(t *testing.T) {
	w := alone(t)
	buffer, err := w.Allgather(background, "rows", hvd.Of([]int32{1, 2, 3}))
	must(t, err)
	w.Close()
	runtime.GC()
	equal(t, slice[int32](t, buffer, nil), []int32{1, 2, 3})
}

func TestOperationsThatNobodyWaitsFor(t *testing.T) {
	w := alone(t)
	for i := range 300 {
		x := make([]float32, 1000)
		_, err := w.StartAllreduce(background, "dropped "+strconv.Itoa(i), hvd.Of(x), hvd.Of(x), hvd.Sum)
		must(t, err)
	}
	must(t, w.Barrier(background, "all is well"))
}

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

func TestRunCallsTheFunctionAndPassesItsErrorsOn(t *testing.T) {
	w := alone(t)
	state, err := w.NewState()
	must(t, err)
	step, calls := 0, 0
	must(t, hvd.AddValue(state, "step", &step))
	must(t, state.Run(background, func(ctx context.Context) error {
		calls++
		for step < 5 {
			step++
			if err := state.Commit(); err != nil {
				return err
			}
		}
		return nil
	}))
	equal(t, [2]int{step, calls}, [2]int{5, 1})
	own := errors.New("own error")
	if err := state.Run(background, func(context.Context) error { return own }); err != own {
		t.Errorf("got %v, expected the function's own error", err)
	}
	err = w.Run(background, func(ctx context.Context) error {
		return w.Broadcast(ctx, "no such root", hvd.Of([]float32{1}), 5)
	})
	expect(t, err, hvd.Invalid, "root")
	func() {
		defer func() { equal(t, recover(), any("on purpose")) }()
		_ = state.Run(background, func(context.Context) error { panic("on purpose") })
	}()
	must(t, state.Run(background, func(context.Context) error { return nil }))
	expect(t, state.Run(background, nil), hvd.Invalid)
	ctx, cancel := context.WithCancel(background)
	err = state.Run(ctx, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return w.Barrier(ctx, "cancelled")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, expected context.Canceled", err)
	}
	expect(t, w.Run(ctx, func(context.Context) error { return nil }), hvd.Closed)
}

func TestContextsThatHaveEnded(t *testing.T) {
	w := alone(t)
	cancelled, cancel := context.WithCancel(background)
	cancel()
	if err := w.Barrier(cancelled, "cancelled"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	late, cancel := context.WithDeadline(background, time.Now().Add(-time.Second))
	defer cancel()
	err := w.Barrier(late, "late")
	if expect(t, err, hvd.Timeout); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := hvd.Init(late, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	// A worker that never finds its driver.
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	_, err = hvd.Init(ctx, &hvd.Options{Values: map[string]any{"driver": "127.0.0.1:1", "worker": 1,
		"secret": strings.Repeat("s", 32), "init_timeout": 3.0, "connect_timeout": 2.0}})
	if err == nil {
		t.Error("a worker without a driver")
	}
}

func TestTheLogGoesToTheProgram(t *testing.T) {
	var mutex sync.Mutex
	lines := 0
	w, err := hvd.Init(background, &hvd.Options{LogLevel: hvd.LogTrace, Log: func(hvd.LogLevel, string) {
		mutex.Lock()
		defer mutex.Unlock()
		lines++
		panic("in the log")
	}})
	must(t, err)
	w.Close()
	equal(t, hvd.Version(), "0.1.0")
	if !strings.Contains(hvd.DescribeOptions(), "operation_timeout") {
		t.Error("options are not described")
	}
}

func TestMain(m *testing.M) {
	if role := os.Getenv("HVD_TEST_ROLE"); role != "" {
		work(role)
		return
	}
	os.Exit(m.Run())
}
