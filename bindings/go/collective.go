// Collectives: one table of operations, each blocking and as an Op.

package hvd

/*
#include "bridge.h"
*/
import "C"

import "context"

// Collectives. All ranks (of the generation, or of the process set) make each call under the same name, in
// any order and from any goroutine. The forms with Start return at once and give an [Op]; the others wait.

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

// rooted is for collectives in which one rank has a part of its own.
func rooted(collective C.int32_t, name string, inputs, outputs []Tensor, root int) *request {
	r := other(collective, name, inputs, outputs)
	r.call.root = r.number("root", root)
	return r
}

func join() *request {
	r := other(C.HVD_COLLECTIVE_JOIN, "join", nil, nil)
	r.isJoin = true
	return r
}

// Allreduce combines all ranks' inputs into output, which may be the same memory; every rank gets the same
// bits. Same dtype and shape everywhere.
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

// Allgather concatenates all ranks' inputs along the first dimension, in rank order. First dimensions may
// differ.
func (w *Worker) Allgather(ctx context.Context, name string, input Tensor, options ...Option) (*Buffer, error) {
	return w.output(ctx, other(C.HVD_COLLECTIVE_ALLGATHER, name, tensors(input), nil), options)
}

// AllgatherInto is [Worker.Allgather] into the program's memory, whose shape tells the room; it gives the
// rows written.
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

// ReducescatterInto is [Worker.Reducescatter] into the program's memory, whose shape tells the room; it gives
// the rows written.
func (w *Worker) ReducescatterInto(ctx context.Context, name string, input, output Tensor, reduction Reduction, options ...Option) (int, error) {
	return w.rows(ctx, reducescatter(name, tensors(input), tensors(output), reduction), options)
}

// StartReducescatter starts [Worker.Reducescatter]; the result is the op's Output.
func (w *Worker) StartReducescatter(ctx context.Context, name string, input Tensor, reduction Reduction, options ...Option) (*Op, error) {
	return w.start(ctx, reducescatter(name, tensors(input), nil, reduction), options)
}

// Alltoall sends rows of the input to each rank ([Splits], else evenly) and concatenates what comes; received
// has the rows that came from each rank.
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

// AlltoallInto is [Worker.Alltoall] into the program's memory, whose shape tells the room; it gives the rows
// written.
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

// Join is for ranks that run out of data before the others: until every rank has joined, the others'
// operations do without this one. It gives the rank that joined last, whose values are the newest. Bounded by
// a day unless [Wait] or the context bounds it.
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

// Send sends a tensor to one rank, which receives it under the same name. The two match alone; dtype and
// shape agree.
func (w *Worker) Send(ctx context.Context, name string, tensor Tensor, to int, options ...Option) error {
	return w.do(ctx, rooted(C.HVD_COLLECTIVE_SEND, name, tensors(tensor), nil, to), options)
}

// StartSend starts [Worker.Send].
func (w *Worker) StartSend(ctx context.Context, name string, tensor Tensor, to int, options ...Option) (*Op, error) {
	return w.start(ctx, rooted(C.HVD_COLLECTIVE_SEND, name, tensors(tensor), nil, to), options)
}

// Receive receives what [Worker.Send] of that rank sends under the same name.
func (w *Worker) Receive(ctx context.Context, name string, tensor Tensor, from int, options ...Option) error {
	return w.do(ctx, rooted(C.HVD_COLLECTIVE_RECEIVE, name, nil, tensors(tensor), from), options)
}

// StartReceive starts [Worker.Receive].
func (w *Worker) StartReceive(ctx context.Context, name string, tensor Tensor, from int, options ...Option) (*Op, error) {
	return w.start(ctx, rooted(C.HVD_COLLECTIVE_RECEIVE, name, nil, tensors(tensor), from), options)
}

func reduce(name string, input, output Tensor, reduction Reduction, root int) *request {
	r := rooted(C.HVD_COLLECTIVE_REDUCE, name, tensors(input), tensors(output), root)
	r.call.reduction = C.int32_t(reduction)
	return r
}

// Reduce is [Worker.Allreduce] whose result root alone gets; the others' output stays as it is.
func (w *Worker) Reduce(ctx context.Context, name string, input, output Tensor, reduction Reduction, root int, options ...Option) error {
	return w.do(ctx, reduce(name, input, output, reduction, root), options)
}

// StartReduce starts [Worker.Reduce].
func (w *Worker) StartReduce(ctx context.Context, name string, input, output Tensor, reduction Reduction, root int, options ...Option) (*Op, error) {
	return w.start(ctx, reduce(name, input, output, reduction, root), options)
}

// Gather concatenates all ranks' inputs on root, in rank order; received has the rows that came from each
// rank. The others get no rows.
func (w *Worker) Gather(ctx context.Context, name string, input Tensor, root int, options ...Option) (output *Buffer, received []int64, err error) {
	op, err := w.run(ctx, rooted(C.HVD_COLLECTIVE_GATHER, name, tensors(input), nil, root), options)
	if err != nil {
		return nil, nil, err
	}
	if output, err = op.Output(0); err != nil {
		return nil, nil, err
	}
	received, err = op.ReceivedSplits()
	return output, received, err
}

// StartGather starts [Worker.Gather]; the results are the op's Output and ReceivedSplits.
func (w *Worker) StartGather(ctx context.Context, name string, input Tensor, root int, options ...Option) (*Op, error) {
	return w.start(ctx, rooted(C.HVD_COLLECTIVE_GATHER, name, tensors(input), nil, root), options)
}

// Scatter deals the rows of root's input out to all ranks, evenly or as root's [Splits] say; it gives the
// rows written into output, whose shape tells the room. The others' input is not looked at: it may be empty.
func (w *Worker) Scatter(ctx context.Context, name string, input, output Tensor, root int, options ...Option) (int, error) {
	return w.rows(ctx, rooted(C.HVD_COLLECTIVE_SCATTER, name, tensors(input), tensors(output), root), options)
}

// StartScatter starts [Worker.Scatter]; the rows written are the op's Rows.
func (w *Worker) StartScatter(ctx context.Context, name string, input, output Tensor, root int, options ...Option) (*Op, error) {
	return w.start(ctx, rooted(C.HVD_COLLECTIVE_SCATTER, name, tensors(input), tensors(output), root), options)
}

// AllgatherObject gives every rank's bytes, of any length each, in rank order.
func (w *Worker) AllgatherObject(ctx context.Context, name string, data []byte, options ...Option) ([][]byte, error) {
	op, err := w.run(ctx, other(C.HVD_COLLECTIVE_ALLGATHER, name, tensors(Of(data)), nil), options)
	if err != nil {
		return nil, err
	}
	return op.objects()
}

// GatherObject is [Worker.AllgatherObject] for root alone: the others get an empty entry for each rank.
func (w *Worker) GatherObject(ctx context.Context, name string, data []byte, root int, options ...Option) ([][]byte, error) {
	op, err := w.run(ctx, rooted(C.HVD_COLLECTIVE_GATHER, name, tensors(Of(data)), nil, root), options)
	if err != nil {
		return nil, err
	}
	return op.objects()
}

func (op *Op) objects() ([][]byte, error) {
	sizes, err := op.ReceivedSplits()
	if err != nil {
		return nil, err
	}
	output, err := op.Output(0)
	if err != nil {
		return nil, err
	}
	all, err := Slice[byte](output)
	if err != nil {
		return nil, err
	}
	objects := make([][]byte, len(sizes))
	for i, size := range sizes {
		objects[i], all = all[:size:size], all[size:]
	}
	return objects, nil
}

// BroadcastObject broadcasts bytes whose length only the root knows: data counts on root, and every rank gets
// them.
func (w *Worker) BroadcastObject(ctx context.Context, name string, data []byte, root int, options ...Option) ([]byte, error) {
	m, err := w.Membership()
	if err != nil {
		return nil, err
	}
	r := rooted(C.HVD_COLLECTIVE_BROADCAST_OBJECT, name, nil, nil, root)
	if m.Rank == root {
		r.inputs = tensors(Of(data))
	}
	op, err := w.run(ctx, r, options)
	if err != nil || m.Rank == root {
		return data, err
	}
	output, err := op.Output(0)
	if err != nil {
		return nil, err
	}
	return Slice[byte](output)
}
