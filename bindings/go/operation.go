// An operation under way: waiting for it, its result, and giving it up.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Reduction is how values are combined.
type Reduction int32

// Reductions.
const (
	Sum     Reduction = C.HVD_REDUCTION_SUM
	Average Reduction = C.HVD_REDUCTION_AVERAGE // of integers rounded towards zero
	Min     Reduction = C.HVD_REDUCTION_MIN
	Max     Reduction = C.HVD_REDUCTION_MAX
	Product Reduction = C.HVD_REDUCTION_PRODUCT
)

// Option of a collective. What a collective does not use is [Invalid].
type Option func(*request)

type request struct {
	call            C.hvdgo_call
	name            string
	inputs, outputs []Tensor
	splits          []int64
	set             *ProcessSet
	timeout         time.Duration
	isJoin          bool
	err             error // of an argument
}

// number is an int as C takes it, which would cut one of more than 32 bits.
func (r *request) number(what string, n int) C.int32_t {
	if int(C.int32_t(n)) != n && r.err == nil {
		r.err = newError(Invalid, "%s is %d: expected a 32-bit number", what, n)
	}
	return C.int32_t(n)
}

// On lets only a process set's members take part.
func On(set *ProcessSet) Option { return func(r *request) { r.set = set } }

// Priority of operations that are ready: higher ones run first.
func Priority(priority int) Option {
	return func(r *request) { r.call.priority = r.number("priority", priority) }
}

// Prescale multiplies the inputs before the reduction.
func Prescale(factor float64) Option { return func(r *request) { r.call.prescale = C.double(factor) } }

// Postscale multiplies the result.
func Postscale(factor float64) Option {
	return func(r *request) { r.call.postscale = C.double(factor) }
}

// Splits: rows to each member (alltoall), or rows that each member gets (reducescatter).
func Splits(rows ...int64) Option {
	rows = slices.Clone(rows) // memory of its own, as cgo wants it
	return func(r *request) { r.splits = rows }
}

// Wait bounds the wait for ranks that do not call; option operation_timeout unless given. A deadline of the
// context bounds it as well.
func Wait(timeout time.Duration) Option { return func(r *request) { r.timeout = timeout } }

// Op is an operation under way. Its memory is pinned until it has completed.
type Op struct {
	worker *Worker
	c      *C.hvd_op
	pinner runtime.Pinner
	unpin  sync.Once
	name   string
}

// How long a call stays in C, whose thread drives what is small at best, before the goroutine is parked, so
// that cancelling is heard and the thread free.
const patience = 2 * time.Millisecond

// Elements from which on a goroutine is parked at once: while a thread is in C, Go's runtime wakes up every
// 20 us to look after it, and takes that from those who move the data.
const manyElements = 1 << 18

// submit starts an operation, and waits for it for a moment if its caller wants to wait anyway.
func (w *Worker) submit(ctx context.Context, r *request, wait bool, options []Option) (op *Op, completed bool, err error) {
	for _, option := range options {
		option(r)
	}
	if ctx.Err() != nil {
		return nil, false, ended(ctx, r.name)
	}
	if r.err != nil {
		return nil, false, r.err
	}
	op = &Op{worker: w, name: r.name}
	if len(r.inputs) > 0 && len(r.outputs) > 0 && len(r.inputs) != len(r.outputs) {
		return nil, false, newError(Invalid, "%s: a group of %d inputs and %d outputs: expected as many of both", r.name,
			len(r.inputs), len(r.outputs))
	}
	if len(r.inputs) == 0 && len(r.outputs) == 0 {
		switch r.call.collective { // a group of nothing is a barrier of that name, as in hvd.h
		case C.HVD_COLLECTIVE_ALLREDUCE, C.HVD_COLLECTIVE_BROADCAST, C.HVD_COLLECTIVE_ALLGATHER:
			r.call.collective, r.call.root, r.call.reduction = C.HVD_COLLECTIVE_BARRIER, 0, 0
			r.call.prescale, r.call.postscale = 0, 0
		}
	}
	inputs, outputs, err := r.describe()
	if err != nil {
		return nil, false, err
	}
	var name *C.char
	if !r.isJoin && r.name != "" { // without a name it is numbered
		for i := range len(r.name) {
			if r.name[i] == 0 {
				return nil, false, newError(Invalid, "name %q has a NUL byte: expected none", r.name)
			}
		}
		letters := append(append(make([]byte, 0, len(r.name)+1), r.name...), 0)
		name = (*C.char)(unsafe.Pointer(&letters[0]))
	}
	r.call.timeout_ns = 0
	if r.timeout > 0 {
		r.call.timeout_ns = nanoseconds(r.timeout)
	}
	if d := left(ctx); d > 0 && (r.timeout <= 0 || d < r.timeout) {
		r.call.timeout_ns = nanoseconds(d)
	}
	if w == nil {
		return nil, false, newError(Invalid, "the worker is nil")
	}
	var set *C.hvd_process_set
	if r.set != nil {
		if r.set.worker != w {
			return nil, false, newError(Invalid, "the process set belongs to another worker")
		}
		set = r.set.c
	}
	w.sweep()
	for _, t := range r.inputs {
		t.pin(&op.pinner)
	}
	for _, t := range r.outputs {
		t.pin(&op.pinner)
	}
	if wait && !r.moves(manyElements) {
		r.call.wait = 1
		if ctx.Done() != nil {
			r.call.wait_ns = nanoseconds(patience)
		}
	}
	e := C.hvd_error{struct_size: C.sizeof_hvd_error}
	status := C.hvdgo_submit(w.c, &r.call, name, inputs, outputs, C.size_t(max(len(r.inputs), len(r.outputs))),
		(*C.int64_t)(unsafe.SliceData(r.splits)), C.size_t(len(r.splits)), set, &op.c, &e)
	done := r.call.done != 0
	if op.c == nil && !done { // it was refused
		op.pinner.Unpin()
		return nil, false, failure(status, &e)
	}
	if op.c != nil {
		runtime.SetFinalizer(op, (*Op).destroy)
	}
	if done {
		op.pinner.Unpin()
		if status != C.HVD_OK {
			return op, true, op.because(ctx, failure(status, &e))
		}
		return op, true, nil
	}
	w.mutex.Lock()
	if w.closed { // meanwhile: the operation has ended with it
		op.pinner.Unpin()
	} else {
		w.pending[op] = struct{}{}
	}
	w.mutex.Unlock()
	return op, false, nil
}

// moves tells whether a tensor has so many elements.
func (r *request) moves(elements int) bool {
	for _, list := range [][]Tensor{r.inputs, r.outputs} {
		for _, t := range list {
			if t.length >= elements {
				return true
			}
		}
	}
	return false
}

// describe writes the tensors' descriptors where C can read them.
func (r *request) describe() (inputs, outputs *C.hvdgo_tensor, err error) {
	room := make([]C.hvdgo_tensor, len(r.inputs)+len(r.outputs))
	for i, list := range [][]Tensor{r.inputs, r.outputs} {
		if len(list) == 0 {
			continue
		}
		for j, t := range list {
			if t.err == nil && t.c.struct_size == 0 {
				t.err = newError(Invalid, "a tensor is empty: expected one of Of")
			}
			if t.err != nil {
				return nil, nil, t.err
			}
			room[j] = t.described()
		}
		if i == 0 {
			inputs = &room[0]
		} else {
			outputs = &room[0]
		}
		room = room[len(list):]
	}
	return inputs, outputs, nil
}

// destroy frees the handle of an operation that has completed: until then its worker knows it.
func (op *Op) destroy() { C.hvd_op_destroy(op.c) }

// sweep unpins what has completed without anybody waiting for it.
func (w *Worker) sweep() {
	w.mutex.Lock()
	if len(w.pending) < 64 {
		w.mutex.Unlock()
		return
	}
	var ops []*Op
	for op := range w.pending {
		ops = append(ops, op)
		if len(ops) == 64 {
			break
		}
	}
	w.mutex.Unlock()
	for _, op := range ops {
		op.test()
	}
}

func (op *Op) test() bool {
	var done C.int32_t
	if C.hvd_op_test(op.c, &done, nil) != C.HVD_OK || done == 0 {
		return false
	}
	op.release()
	return true
}

// release gives the memory of a completed operation back.
func (op *Op) release() {
	op.unpin.Do(func() {
		op.worker.mutex.Lock()
		_, pinned := op.worker.pending[op]
		delete(op.worker.pending, op)
		op.worker.mutex.Unlock()
		if pinned {
			op.pinner.Unpin()
		}
	})
}

// because adds the context's error if its deadline was the operation's time-out.
func (op *Op) because(ctx context.Context, err error) error {
	if e, ok := err.(*Error); ok && e.Status == Timeout {
		if _, bounded := ctx.Deadline(); bounded && left(ctx) <= time.Millisecond {
			e.cause = context.DeadlineExceeded
		}
	}
	return err
}

// Done tells whether it has completed, in success or failure. Never blocks.
func (op *Op) Done() bool {
	return op != nil && op.test()
}

// Wait waits until it has completed. When the context ends first, so does the wait, and the operation goes
// on; the error is also the context's. May be called again, and from several goroutines.
func (op *Op) Wait(ctx context.Context) error {
	if op == nil {
		return newError(Invalid, "the operation is nil")
	}
	if !op.test() {
		if err := op.park(ctx); err != nil {
			return err
		}
		if !op.test() {
			return ended(ctx, "wait for "+op.name)
		}
	}
	e := C.hvd_error{struct_size: C.sizeof_hvd_error}
	status := C.hvd_op_wait(op.c, C.HVD_DEFAULT_TIMEOUT, &e)
	op.test()
	if status != C.HVD_OK {
		return op.because(ctx, failure(status, &e))
	}
	return nil
}

// park returns when it has completed or the context has ended. Meanwhile the goroutine holds no thread.
func (op *Op) park(ctx context.Context) error {
	e := C.hvd_error{struct_size: C.sizeof_hvd_error}
	var fd C.int32_t
	if status := C.hvd_op_get_fd(op.c, &fd, &e); status != C.HVD_OK {
		return failure(status, &e)
	}
	own, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return newError(Unavailable, "a descriptor to wait for %q: %v", op.name, errno)
	}
	file := os.NewFile(own, "operation "+op.name)
	defer file.Close()
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() { file.SetReadDeadline(time.Unix(0, 1)) })()
	}
	poll, err := file.SyscallConn()
	if err == nil {
		err = poll.Read(func(uintptr) bool { return op.test() })
	}
	if err != nil && ctx.Err() == nil {
		return newError(Unavailable, "wait for %q: %v", op.name, err)
	}
	return nil
}

// Output is what came out of a completed operation whose output the library made; of a group the index-th
// one.
func (op *Op) Output(index int) (*Buffer, error) {
	if op == nil {
		return nil, newError(Invalid, "the operation is nil")
	}
	b := &Buffer{op: op}
	b.c.struct_size = C.sizeof_hvdgo_tensor
	err := op.worker.call(func(_ *C.hvd_context, e *C.hvd_error) C.hvd_status {
		return C.hvdgo_output(op.c, C.size_t(index), &b.c, e)
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Rows that a completed operation wrote into the program's output.
func (op *Op) Rows() (int, error) {
	b, err := op.Output(0)
	if err != nil {
		return 0, err
	}
	return int(b.c.shape[0]), nil
}

// ReceivedSplits of a completed alltoall: rows that came from each member.
func (op *Op) ReceivedSplits() ([]int64, error) {
	if op == nil {
		return nil, newError(Invalid, "the operation is nil")
	}
	var splits []int64
	var count C.size_t
	err := op.worker.call(func(_ *C.hvd_context, e *C.hvd_error) C.hvd_status {
		if status := C.hvd_op_get_received_splits(op.c, nil, &count, e); status != C.HVD_OK {
			return status
		}
		splits = make([]int64, count)
		return C.hvd_op_get_received_splits(op.c, (*C.int64_t)(unsafe.SliceData(splits)), &count, e)
	})
	return splits, err
}

// LastJoined of a completed join: the rank that joined last, whose values are the newest.
func (op *Op) LastJoined() (int, error) {
	if op == nil {
		return -1, newError(Invalid, "the operation is nil")
	}
	rank := C.int32_t(-1)
	err := op.worker.call(func(_ *C.hvd_context, e *C.hvd_error) C.hvd_status {
		return C.hvd_op_get_last_joined(op.c, &rank, e)
	})
	return int(rank), err
}

// do is a blocking collective whose outputs are the program's.
func (w *Worker) do(ctx context.Context, r *request, options []Option) error {
	r.call.discard = 1
	_, err := w.run(ctx, r, options)
	return err
}

// run is a blocking collective.
func (w *Worker) run(ctx context.Context, r *request, options []Option) (*Op, error) {
	op, completed, err := w.submit(ctx, r, true, options)
	if err != nil || completed {
		return op, err
	}
	return op, op.Wait(ctx)
}

func (w *Worker) start(ctx context.Context, r *request, options []Option) (*Op, error) {
	op, _, err := w.submit(ctx, r, false, options)
	return op, err
}
