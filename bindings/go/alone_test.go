// Tests of a worker that is alone: everything but its peers.

package hvd_test

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"reflect"
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
				"rendezvous": address, "secret": strings.Repeat("s", 32), "operation_timeout": 30 * time.Second}})
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
	must(t, w.GroupedAllreduce(background, "no sum", nil, nil, hvd.Average, hvd.Prescale(2)))
	must(t, w.BroadcastVariables(background, "no copy", nil, 0))
	none, err := w.GroupedAllgather(background, "no rows", nil)
	must(t, err)
	equal(t, len(none), 0)
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
	must(t, reduce("", floats, floats)) // it gets a number
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
	expect(t, w.Barrier(background, "closed set", hvd.On(set)), hvd.Closed, "process_set")
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
		"secret": strings.Repeat("s", 32), "init_timeout": 3 * time.Second, "connect_timeout": 2 * time.Second}})
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
	equal(t, hvd.Version(), "0.2.0")
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
