// Trains a small network on Fashion-MNIST with whoever is there: workers may die, leave and join while it
// runs, and may be of other languages: examples/fashion_mnist.cc and the Rust binding's example train the
// same model.
//
//	hvdrun -np 3 --min-np 2 --max-np 4 --host-discovery-script ./hosts.sh fashion_mnist
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"libhvd/hvd"
)

type settings struct {
	data                        string
	epochs, batch, hidden, seed uint64
	commitEvery, reportEvery    int64
	rate, target                float64
}

const momentum = float32(0.9)

type job struct {
	settings
	train, test *images
	model       mlp
	worker      *hvd.Worker
	state       *hvd.State

	// In the state, under the same keys in every language.
	parameters, velocity []float32
	step                 int64
	sampler              *hvd.Sampler

	rank, size int // of this generation
	reported   int // recoveries
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (j *job) reportRecoveries() error {
	recoveries, err := j.worker.Recoveries()
	for ; err == nil && j.reported < len(recoveries); j.reported++ {
		r := recoveries[j.reported]
		verb := "remain"
		if errors.Is(r.Cause, hvd.PeerLost) {
			verb = "go on"
		} else if r.ToSize > r.FromSize {
			verb = "from now on"
		}
		if j.rank == 0 {
			fmt.Printf("recovery %d: %s: %d workers %s; detection %.1f ms, abort %.1f, restore %.1f, forming %.1f, "+
				"connecting %.1f, sync %.1f, total %.1f ms\n", j.reported+1, r.Reason, r.ToSize, verb, ms(r.Detection),
				ms(r.Abort), ms(r.Restore), ms(r.Forming), ms(r.Connecting), ms(r.Sync), ms(r.Total))
		}
	}
	return err
}

// sum is an allreduce in place.
func sum[T hvd.Element](ctx context.Context, j *job, name string, data []T, reduction hvd.Reduction) error {
	return j.worker.Allreduce(ctx, name, hvd.Of(data), hvd.Of(data), reduction)
}

// doStep is one step of all workers on their parts of the batch.
func (j *job) doStep(ctx context.Context, batch *hvd.Batch, sums []float32) (loss float32, err error) {
	count := len(j.parameters)
	pixels, labels := j.train.gather(batch.Indices)
	sums[count] = j.model.gradient(j.parameters, pixels, labels, sums)
	if err := sum(ctx, j, "gradient", sums, hvd.Sum); err != nil {
		return 0, err
	}
	scale, rate := 1/float32(batch.Total), float32(j.rate)
	for i := range j.parameters {
		// Each product is rounded, as in every language: no fused operations.
		j.velocity[i] = float32(momentum*j.velocity[i]) + float32(scale*sums[i])
		j.parameters[i] -= float32(rate * j.velocity[i])
	}
	j.step++
	return sums[count] * scale, j.sampler.Record(batch)
}

// evaluate lets each worker classify its part of the test set; all get the result.
func (j *job) evaluate(ctx context.Context) (accuracy float64, err error) {
	var chosen []uint64
	for i := j.test.count * j.rank / j.size; i < j.test.count*(j.rank+1)/j.size; i++ {
		chosen = append(chosen, uint64(i))
	}
	pixels, labels := j.test.gather(chosen)
	correct := []int64{j.model.countCorrect(j.parameters, pixels, labels)}
	err = sum(ctx, j, "correct", correct, hvd.Sum)
	return float64(correct[0]) / float64(j.test.count), err
}

// compareModels asks whether all workers hold the same model, bit for bit, by the FNV-1a hash of the
// parameters.
func (j *job) compareModels(ctx context.Context) error {
	hash := uint64(14695981039346656037)
	for _, value := range j.parameters {
		hash = (hash ^ uint64(math.Float32bits(value))) * 1099511628211
	}
	lowest, highest := []uint64{hash}, []uint64{hash}
	if err := sum(ctx, j, "lowest hash", lowest, hvd.Min); err != nil {
		return err
	}
	if err := sum(ctx, j, "highest hash", highest, hvd.Max); err != nil {
		return err
	}
	if lowest[0] != highest[0] {
		return fmt.Errorf("rank %d holds a model of its own (%016x)", j.rank, hash)
	}
	if j.rank == 0 {
		fmt.Printf("all %d workers hold the same model (%016x)\n", j.size, hash)
	}
	return nil
}

// trainOn is the training function of Run: begins wherever the state is, with whoever is there.
func (j *job) trainOn(ctx context.Context) error {
	j.rank, j.size = j.worker.Rank(), j.worker.Size()
	if err := j.reportRecoveries(); err != nil {
		return err
	}
	sums := make([]float32, len(j.parameters)+1) // gradient and loss
	for {
		batch, err := j.sampler.Next(nil)
		if err != nil {
			return err
		}
		if batch.Total == 0 { // the epoch is over
			if batch.Epoch+1 >= j.epochs {
				break
			}
			if err := j.sampler.SetEpoch(batch.Epoch + 1); err != nil {
				return err
			}
			continue
		}
		loss, err := j.doStep(ctx, batch, sums)
		if err != nil {
			return err
		}
		if j.rank == 0 && j.step%j.reportEvery == 0 {
			fmt.Printf("epoch %d step %d loss %.3f workers %d\n", batch.Epoch+1, j.step, loss, j.size)
		}
		if j.step%j.commitEvery == 0 {
			if err := j.state.Commit(); err != nil {
				return err
			}
		}
	}
	accuracy, err := j.evaluate(ctx)
	if err != nil {
		return err
	}
	if err := j.compareModels(ctx); err != nil {
		return err
	}
	if j.rank == 0 {
		fmt.Printf("test accuracy %.4f\n", accuracy)
	}
	if accuracy < j.target { // ends Run, and the job: no worker says that it is done
		return fmt.Errorf("the accuracy is below the target of %.4f", j.target)
	}
	return nil
}

func (j *job) work(ctx context.Context) (err error) {
	if j.train, err = readImages(j.data, "train"); err != nil {
		return err
	}
	if j.test, err = readImages(j.data, "t10k"); err != nil {
		return err
	}
	j.model = mlp{j.train.pixels, int(j.hidden), 10}
	j.parameters = j.model.initial(j.seed)
	j.velocity = make([]float32, len(j.parameters))
	log := func(_ hvd.LogLevel, line string) { fmt.Fprintln(os.Stderr, "hvd:", line) }
	if j.worker, err = hvd.Init(ctx, &hvd.Options{Log: log}); err != nil {
		return err
	}
	defer j.worker.Close()
	place, err := j.worker.Membership()
	if err != nil {
		return err
	}
	fmt.Printf("worker %d pid %d joins as rank %d of %d (Go)\n", place.Worker, os.Getpid(), place.Rank, place.Size)
	if j.state, err = j.worker.NewState(); err != nil {
		return err
	}
	samples := hvd.SamplerOptions{Samples: uint64(j.train.count), BatchSize: j.batch, Seed: j.seed}
	if j.sampler, err = j.worker.NewSampler(samples); err != nil {
		return err
	}
	if err := errors.Join(
		j.state.AddTensor("parameters", hvd.Of(j.parameters)),
		j.state.AddTensor("velocity", hvd.Of(j.velocity)),
		hvd.AddValue(j.state, "step", &j.step),
		j.state.AddSampler("sampler", j.sampler),
	); err != nil {
		return err
	}
	err = j.state.Run(ctx, j.trainOn)
	if errors.Is(err, hvd.Removed) {
		fmt.Printf("worker pid %d leaves: %v\n", os.Getpid(), err)
		return nil
	}
	// Says that this worker is done; after a failed run it only takes leave.
	end := j.worker.Shutdown(ctx)
	if err == nil {
		err = end
	}
	return err
}

func main() {
	j := job{}
	directory := os.Getenv("HVD_FASHION_MNIST_DIR")
	if directory == "" {
		directory = "/usr/share/datasets/fashion-mnist"
	}
	flag.StringVar(&j.data, "data", directory, "directory of the data set")
	flag.Uint64Var(&j.epochs, "epochs", 8, "")
	flag.Uint64Var(&j.batch, "batch", 64, "samples of one worker in a step")
	flag.Uint64Var(&j.hidden, "hidden", 128, "size of the hidden layer")
	flag.Uint64Var(&j.seed, "seed", 1, "")
	flag.Int64Var(&j.commitEvery, "commit-every", 10, "steps")
	flag.Int64Var(&j.reportEvery, "report-every", 20, "steps")
	flag.Float64Var(&j.rate, "rate", 0.02, "")
	flag.Float64Var(&j.target, "target", 0.84, "accuracy below which the job has failed")
	flag.Parse()
	j.commitEvery, j.reportEvery = max(1, j.commitEvery), max(1, j.reportEvery)
	if err := j.work(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
