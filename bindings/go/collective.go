// Collectives: one table of operations, each blocking and as an Op.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"bytes"
	"context"
	"runtime"
	"unsafe"
)

// Collectives. All ranks (of the generation, or of the process set) make each call under the same name, in any order and
// from any goroutine. The forms with Start return at once and give an [Op]; the others wait.

func tensors(t ...Tensor) []Tensor { return t }

func allreduce(name string, inputs, outputs []Tensor, reduction Reduction) *request {
	r := &request{name: name, inputs: inputs, outputs: outputs}
	r.call.collective, r.call.reduction = C.HVD_COLLECTIVE_ALLREDUCE, C.int32_t(reduction)
	return r
}

func broadcast(name string, outputs []Tensor, root int) *request {
	r := &request{name: name, outputs: outputs}
	r.call.collective, r.call.root = C.HVD_COLLECTIVE_BROADCAST, r.number("root", root)
	return r
}

func other(collective C.int32_t, name string, inputs, outputs []Tensor) *request {
	r := &request{name: name, inputs: inputs, outputs: outputs}
	r.call.collective = collective
	return r
}

func join() *request {
	r := other(C.HVD_COLLECTIVE_JOIN, "join", nil, nil)
	r.isJoin = true
	return r
}

// Allreduce combines all ranks' inputs into output, which may be the same memory; every rank gets the same bits. Same
// dtype and shape everywhere.
func (w *Worker) Allreduce(ctx context.Context, name string, input, output Tensor, reduction Reduction, options ...Option) error {
	return w.do(ctx, allreduce(name, tensors(input), tensors(output), reduction), options)
}

// StartAllreduce starts [Worker.Allreduce].
func (w *Worker) StartAllreduce(ctx context.Context, name string, input, output Tensor, reduction Reduction, options ...Option) (*Op, error) {
	return w.start(ctx, allreduce(name, tensors(input), tensors(output), reduction), options)
}

// GroupedAllreduce is one operation on several tensors; dtypes and shapes may differ among them.
func (w *Worker) GroupedAllreduce(ctx context.Context, name string, inputs, outputs []Tensor, reduction Reduction, options ...Option) error {
	return w.do(ctx, allreduce(name, inputs, outputs, reduction), options)
}

// StartGroupedAllreduce starts [Worker.GroupedAllreduce].
func (w *Worker) StartGroupedAllreduce(ctx context.Context, name string, inputs, outputs []Tensor, reduction Reduction, options ...Option) (*Op, error) {
	return w.start(ctx, allreduce(name, inputs, outputs, reduction), options)
}

// Broadcast copies root's tensor into every other rank's.
func (w *Worker) Broadcast(ctx context.Context, name string, tensor Tensor, root int, options ...Option) error {
	return w.do(ctx, broadcast(name, tensors(tensor), root), options)
}

// StartBroadcast starts [Worker.Broadcast].
func (w *Worker) StartBroadcast(ctx context.Context, name string, tensor Tensor, root int, options ...Option) (*Op, error) {
	return w.start(ctx, broadcast(name, tensors(tensor), root), options)
}

// BroadcastVariables is one operation on several tensors of root's.
func (w *Worker) BroadcastVariables(ctx context.Context, name string, variables []Tensor, root int, options ...Option) error {
	return w.do(ctx, broadcast(name, variables, root), options)
}

// StartBroadcastVariables starts [Worker.BroadcastVariables].
func (w *Worker) StartBroadcastVariables(ctx context.Context, name string, variables []Tensor, root int, options ...Option) (*Op, error) {
	return w.start(ctx, broadcast(name, variables, root), options)
}

// Allgather concatenates all ranks' inputs along the first dimension, in rank order. First dimensions may differ.
func (w *Worker) Allgather(ctx context.Context, name string, input Tensor, options ...Option) (*Buffer, error) {
	return w.output(ctx, other(C.HVD_COLLECTIVE_ALLGATHER, name, tensors(input), nil), options)
}

// AllgatherInto is [Worker.Allgather] into the program's memory, whose shape tells the room; it gives the rows written.
func (w *Worker) AllgatherInto(ctx context.Context, name string, input, output Tensor, options ...Option) (int, error) {
	return w.rows(ctx, other(C.HVD_COLLECTIVE_ALLGATHER, name, tensors(input), tensors(output)), options)
}

// StartAllgather starts [Worker.Allgather]; the result is the op's Output.
func (w *Worker) StartAllgather(ctx context.Context, name string, input Tensor, options ...Option) (*Op, error) {
	return w.start(ctx, other(C.HVD_COLLECTIVE_ALLGATHER, name, tensors(input), nil), options)
}

// GroupedAllgather is several allgathers as one operation.
func (w *Worker) GroupedAllgather(ctx context.Context, name string, inputs []Tensor, options ...Option) ([]*Buffer, error) {
	op, err := w.run(ctx, other(C.HVD_COLLECTIVE_ALLGATHER, name, inputs, nil), options)
	if err != nil {
		return nil, err
	}
	buffers := make([]*Buffer, len(inputs))
	for i := range buffers {
		if buffers[i], err = op.Output(i); err != nil {
			return nil, err
		}
	}
	return buffers, nil
}

// StartGroupedAllgather starts [Worker.GroupedAllgather]; the results are the op's Outputs.
func (w *Worker) StartGroupedAllgather(ctx context.Context, name string, inputs []Tensor, options ...Option) (*Op, error) {
	return w.start(ctx, other(C.HVD_COLLECTIVE_ALLGATHER, name, inputs, nil), options)
}

func reducescatter(name string, inputs, outputs []Tensor, reduction Reduction) *request {
	r := other(C.HVD_COLLECTIVE_REDUCESCATTER, name, inputs, outputs)
	r.call.reduction = C.int32_t(reduction)
	return r
}

// Reducescatter reduces and gives each rank its share of the rows: evenly, or as [Splits] says.
func (w *Worker) Reducescatter(ctx context.Context, name string, input Tensor, reduction Reduction, options ...Option) (*Buffer, error) {
	return w.output(ctx, reducescatter(name, tensors(input), nil, reduction), options)
}

// ReducescatterInto is [Worker.Reducescatter] into the program's memory, whose shape tells the room; it gives the rows
// written.
func (w *Worker) ReducescatterInto(ctx context.Context, name string, input, output Tensor, reduction Reduction, options ...Option) (int, error) {
	return w.rows(ctx, reducescatter(name, tensors(input), tensors(output), reduction), options)
}

// StartReducescatter starts [Worker.Reducescatter]; the result is the op's Output.
func (w *Worker) StartReducescatter(ctx context.Context, name string, input Tensor, reduction Reduction, options ...Option) (*Op, error) {
	return w.start(ctx, reducescatter(name, tensors(input), nil, reduction), options)
}

// Alltoall sends rows of the input to each rank ([Splits], else evenly) and concatenates what comes; received has the rows
// that came from each rank.
func (w *Worker) Alltoall(ctx context.Context, name string, input Tensor, options ...Option) (output *Buffer, received []int64, err error) {
	op, err := w.run(ctx, other(C.HVD_COLLECTIVE_ALLTOALL, name, tensors(input), nil), options)
	if err != nil {
		return nil, nil, err
	}
	if output, err = op.Output(0); err != nil {
		return nil, nil, err
	}
	received, err = op.ReceivedSplits()
	return output, received, err
}

// AlltoallInto is [Worker.Alltoall] into the program's memory, whose shape tells the room; it gives the rows written.
func (w *Worker) AlltoallInto(ctx context.Context, name string, input, output Tensor, options ...Option) (rows int, received []int64, err error) {
	op, err := w.run(ctx, other(C.HVD_COLLECTIVE_ALLTOALL, name, tensors(input), tensors(output)), options)
	if err != nil {
		return 0, nil, err
	}
	if rows, err = op.Rows(); err != nil {
		return 0, nil, err
	}
	received, err = op.ReceivedSplits()
	return rows, received, err
}

// StartAlltoall starts [Worker.Alltoall]; the results are the op's Output and ReceivedSplits.
func (w *Worker) StartAlltoall(ctx context.Context, name string, input Tensor, options ...Option) (*Op, error) {
	return w.start(ctx, other(C.HVD_COLLECTIVE_ALLTOALL, name, tensors(input), nil), options)
}

// Barrier returns when every rank has called it.
func (w *Worker) Barrier(ctx context.Context, name string, options ...Option) error {
	return w.do(ctx, other(C.HVD_COLLECTIVE_BARRIER, name, nil, nil), options)
}

// StartBarrier starts [Worker.Barrier].
func (w *Worker) StartBarrier(ctx context.Context, name string, options ...Option) (*Op, error) {
	return w.start(ctx, other(C.HVD_COLLECTIVE_BARRIER, name, nil, nil), options)
}

// Join is for ranks that run out of data before the others: until every rank has joined, the others' operations do
// without this one. It gives the rank that joined last, whose values are the newest. Bounded by a day unless [Wait] or the
// context bounds it.
func (w *Worker) Join(ctx context.Context, options ...Option) (int, error) {
	op, err := w.run(ctx, join(), options)
	if err != nil {
		return -1, err
	}
	return op.LastJoined()
}

// StartJoin starts [Worker.Join]; the result is the op's LastJoined.
func (w *Worker) StartJoin(ctx context.Context, options ...Option) (*Op, error) {
	return w.start(ctx, join(), options)
}

func (w *Worker) output(ctx context.Context, r *request, options []Option) (*Buffer, error) {
	op, err := w.run(ctx, r, options)
	if err != nil {
		return nil, err
	}
	return op.Output(0)
}

func (w *Worker) rows(ctx context.Context, r *request, options []Option) (int, error) {
	op, err := w.run(ctx, r, options)
	if err != nil {
		return 0, err
	}
	return op.Rows()
}

// BroadcastObject broadcasts bytes whose length only the root knows: data counts on root, and every rank gets them. The
// context bounds nothing but the beginning: option operation_timeout bounds the wait.
func (w *Worker) BroadcastObject(ctx context.Context, name string, data []byte, root int) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx, name)
	}
	text, free, err := cString("name", name)
	if err != nil {
		return nil, err
	}
	defer free()
	m, err := w.Membership()
	if err != nil {
		return nil, err
	}
	if int(C.int32_t(root)) != root {
		return nil, newError(Invalid, "root is %d: expected a rank", root)
	}
	var memory C.uintptr_t // of the library; on root it is read where it is
	var size C.size_t
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if m.Rank == root {
		pinner.Pin(unsafe.SliceData(data))
		memory, size = C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(data)))), C.size_t(len(data))
	}
	err = w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status {
		return C.hvdgo_broadcast_object(c, text, &memory, &size, C.int32_t(root), e)
	})
	if err != nil || m.Rank == root {
		return data, err
	}
	received := C.hvdgo_pointer(memory)
	defer C.hvd_free(received)
	return bytes.Clone(unsafe.Slice((*byte)(received), int(size))), nil
}
