// A perceptron with one hidden layer, the same bit for bit as the C++ example's.

package main

import (
	"math"
	"math/rand/v2"
)

// mlp is a multilayer perceptron with one hidden layer whose parameters lie in one flat buffer, so that one
// allreduce carries a whole gradient. The layout is that of the C++ example: w1, b1, w2, b2, matrices column
// by column.
type mlp struct{ inputs, hidden, outputs int }

func (m mlp) parameterCount() int { return m.hidden*(m.inputs+1) + m.outputs*(m.hidden+1) }

// layers are the parts of the flat buffer.
func (m mlp) layers(p []float32) (w1, b1, w2, b2 []float32) {
	a := m.hidden * m.inputs
	b := a + m.hidden
	c := b + m.outputs*m.hidden
	return p[:a], p[a:b], p[b:c], p[c : c+m.outputs]
}

// initial parameters as of He et al., "Delving Deep into Rectifiers" (2015): zero biases, normal weights.
func (m mlp) initial(seed uint64) []float32 {
	parameters, random := make([]float32, m.parameterCount()), rand.New(rand.NewPCG(seed, 0))
	w1, _, w2, _ := m.layers(parameters)
	for i := range w1 {
		w1[i] = float32(random.NormFloat64() * math.Sqrt(2/float64(m.inputs)))
	}
	for i := range w2 {
		w2[i] = float32(random.NormFloat64() * math.Sqrt(2/float64(m.hidden)))
	}
	return parameters
}

// addScaled is y += a x.
func addScaled(y []float32, a float32, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] += a * x[i]
	}
}

// forward gives the activations h of the hidden layer and the logits y, for one sample.
func (m mlp) forward(parameters, x, h, y []float32) {
	w1, b1, w2, b2 := m.layers(parameters)
	copy(h, b1)
	copy(y, b2)
	for k, x := range x {
		addScaled(h, x, w1[k*m.hidden:])
	}
	for j := range h {
		h[j] = max(h[j], 0)
		addScaled(y, h[j], w2[j*m.outputs:])
	}
}

// gradient gives the sum over the samples of the cross entropy with labels, and writes the gradient of that
// sum.
func (m mlp) gradient(parameters, samples []float32, labels []uint8, gradient []float32) float32 {
	_, _, w2, _ := m.layers(parameters)
	clear(gradient[:m.parameterCount()])
	g1, gb1, g2, gb2 := m.layers(gradient)
	h, dh, y := make([]float32, m.hidden), make([]float32, m.hidden), make([]float32, m.outputs)
	loss := float32(0)
	for s, label := range labels {
		x := samples[s*m.inputs : (s+1)*m.inputs]
		m.forward(parameters, x, h, y)
		highest, sum := y[0], float32(0)
		for _, v := range y {
			highest = max(highest, v)
		}
		for i := range y {
			y[i] = float32(math.Exp(float64(y[i] - highest)))
			sum += y[i]
		}
		for i := range y {
			y[i] /= sum
		}
		loss -= float32(math.Log(math.Max(float64(y[label]), 1e-30)))
		y[label]-- // y is now the gradient by the logits
		addScaled(gb2, 1, y)
		for j := range h {
			addScaled(g2[j*m.outputs:(j+1)*m.outputs], h[j], y)
			dh[j] = 0
			if h[j] > 0 {
				for i := range y {
					dh[j] += w2[j*m.outputs+i] * y[i]
				}
			}
		}
		addScaled(gb1, 1, dh)
		for k, x := range x {
			addScaled(g1[k*m.hidden:(k+1)*m.hidden], x, dh)
		}
	}
	return loss
}

// countCorrect tells how many samples are classified as labels says.
func (m mlp) countCorrect(parameters, samples []float32, labels []uint8) (correct int64) {
	h, y := make([]float32, m.hidden), make([]float32, m.outputs)
	for s, label := range labels {
		m.forward(parameters, samples[s*m.inputs:(s+1)*m.inputs], h, y)
		best := 0
		for i := range y {
			if y[i] > y[best] {
				best = i
			}
		}
		if best == int(label) {
			correct++
		}
	}
	return correct
}
