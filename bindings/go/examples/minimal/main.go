// Fits y = 2x + 1, each worker on its own points. Any worker may die or join at any time.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"libhvd/hvd"
)

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
	w, step := make([]float32, 2), int64(0)
	if err := errors.Join(state.AddTensor("w", hvd.Of(w)), hvd.AddValue(state, "step", &step)); err != nil {
		return err
	}
	err = state.Run(ctx, func(ctx context.Context) error {
		rank, size := int64(worker.Rank()), int64(worker.Size())
		for step < 2000 {
			x := float32((step*size+rank)%17) / 17
			wrong := w[0]*x + w[1] - (2*x + 1)
			gradient := []float32{wrong * x, wrong}
			err := worker.Allreduce(ctx, "gradient", hvd.Of(gradient), hvd.Of(gradient), hvd.Average)
			if err != nil {
				return err
			}
			for i := range w {
				w[i] -= 0.5 * gradient[i]
			}
			if step++; step%10 == 0 {
				if err := state.Commit(); err != nil {
					return err // a loss or a change of hosts is passed on: Run calls this function again
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("rank %d of %d: y = %.2fx + %.2f\n", worker.Rank(), worker.Size(), w[0], w[1])
	return worker.Shutdown(ctx)
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
