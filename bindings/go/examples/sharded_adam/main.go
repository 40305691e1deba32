// Adam, whose moments are dealt out over the ranks. Any worker may die or join at any time.
//
// Each rank holds the moments of its part of the weights, and a copy of another rank's. It moves its part of
// the weights, and an allgather gives everybody all of them. Each step is committed while the next one
// computes.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"libhvd/hvd"
)

const size = 1000

type training struct {
	weights []float32
	m, v    *hvd.Shard[float32]
	step    int64
}

// gradient: each weight wants to be its own number.
func (t *training) gradient() []float32 {
	g := make([]float32, size)
	for i, w := range t.weights {
		g[i] = w - float32(i)/size
	}
	return g
}

// moved gives this rank's part of the weights after a step.
func (t *training) moved(gradient []float32) []float32 {
	m, v, from := t.m.Data(), t.v.Data(), int(t.m.Offset())
	part := append([]float32(nil), t.weights[from:from+len(m)]...)
	for i := range part {
		g := gradient[from+i]
		m[i] = 0.9*m[i] + 0.1*g
		v[i] = 0.99*v[i] + 0.01*g*g
		part[i] -= 0.01 * m[i] / (float32(math.Sqrt(float64(v[i]))) + 1e-8)
	}
	return part
}

func newTraining(state *hvd.State) (*training, error) {
	t := &training{weights: make([]float32, size)}
	var noM, noV error
	t.m, noM = hvd.AddShard[float32](state, "adam.m", size, 1)
	t.v, noV = hvd.AddShard[float32](state, "adam.v", size, 1)
	noWeights, noStep := state.AddTensor("weights", hvd.Of(t.weights)), hvd.AddValue(state, "step", &t.step)
	return t, errors.Join(noM, noV, noWeights, noStep)
}

func run(ctx context.Context) error {
	worker, err := hvd.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer worker.Close()
	state, err := worker.NewState()
	if err != nil {
		return err
	}
	t, err := newTraining(state)
	if err != nil {
		return err
	}
	// More workers were lost than there are copies: this program has no checkpoint, and begins anew.
	err = state.OnLost(func(sentence string) error {
		fmt.Fprintln(os.Stderr, sentence)
		clear(t.weights)
		clear(t.m.Data())
		clear(t.v.Data())
		t.step = 0
		return nil
	})
	if err != nil {
		return err
	}
	err = state.Run(ctx, func(ctx context.Context) error {
		begun := false
		for t.step < 500 {
			gradient := t.gradient()
			err := worker.Allreduce(ctx, "gradient", hvd.Of(gradient), hvd.Of(gradient), hvd.Average)
			if err != nil {
				return err
			}
			if begun {
				if err := state.CommitEnd(); err != nil {
					return err
				}
			} // from here on the weights may change
			part := hvd.Of(t.moved(gradient))
			if _, err := worker.AllgatherInto(ctx, "weights", part, hvd.Of(t.weights)); err != nil {
				return err
			}
			t.step++
			if err := state.CommitBegin(); err != nil { // nothing writes weights or moments before CommitEnd
				return err
			}
			begun = true
		}
		if begun {
			return state.CommitEnd()
		}
		return nil
	})
	if err != nil {
		return err
	}
	wrong := 0.0
	for _, g := range t.gradient() {
		wrong = max(wrong, math.Abs(float64(g)))
	}
	fmt.Printf("rank %d of %d: step %d, wrong by %.3f at most\n", worker.Rank(), worker.Size(), t.step, wrong)
	return worker.Shutdown(ctx)
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
