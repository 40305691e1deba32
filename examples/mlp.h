// A multilayer perceptron with one hidden layer whose parameters lie in one flat buffer, so that one
// allreduce carries a whole gradient.
#pragma once

#include <Eigen/Dense>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

class Mlp {
 public:
  // A sample is a column.
  using Matrix = Eigen::MatrixXf;
  using Map = Eigen::Map<Eigen::MatrixXf>;

  Mlp(int64_t inputs, int64_t hidden, int64_t outputs)
      : inputs_(inputs), hidden_(hidden), outputs_(outputs) {}

  int64_t parameter_count() const { return hidden_ * (inputs_ + 1) + outputs_ * (hidden_ + 1); }

  /// He et al., "Delving Deep into Rectifiers" (2015): zero biases, normal weights.
  void initialize(float* parameters, uint64_t seed) const {
    std::mt19937_64 random(seed);
    Layers l = layers(parameters);
    for (auto* w : {&l.w1, &l.w2}) {
      std::normal_distribution<float> normal(0, std::sqrt(2.0f / static_cast<float>(w->cols())));
      for (int64_t i = 0; i < w->size(); ++i) w->data()[i] = normal(random);
    }
    l.b1.setZero();
    l.b2.setZero();
  }

  /// Sum over the samples of x (inputs x n) of the cross entropy with `labels` (n). Writes the gradient
  /// of that sum into `gradient` (parameter_count).
  float gradient(const float* parameters, const Matrix& x, const std::vector<uint8_t>& labels,
                 float* gradient) const {
    Layers p = layers(const_cast<float*>(parameters)), g = layers(gradient);
    Matrix h = ((p.w1 * x).colwise() + p.b1.col(0)).cwiseMax(0.0f);
    Matrix y = (p.w2 * h).colwise() + p.b2.col(0);
    float loss = 0;
    for (int64_t i = 0; i < y.cols(); ++i) {
      y.col(i).array() -= y.col(i).maxCoeff();
      y.col(i) = y.col(i).array().exp();
      y.col(i) /= y.col(i).sum();
      float& correct = y(labels[static_cast<size_t>(i)], i);
      loss -= std::log(std::max(correct, 1e-30f));
      correct -= 1;  // y is now the gradient by the logits
    }
    g.w2.noalias() = y * h.transpose();
    g.b2 = y.rowwise().sum();
    Matrix dh = p.w2.transpose() * y;
    dh = (h.array() > 0).select(dh, 0.0f);
    g.w1.noalias() = dh * x.transpose();
    g.b1 = dh.rowwise().sum();
    return loss;
  }

  /// How many columns of x are classified as `labels` says.
  int64_t count_correct(const float* parameters, const Matrix& x, const std::vector<uint8_t>& labels) const {
    Layers p = layers(const_cast<float*>(parameters));
    Matrix y = p.w2 * ((p.w1 * x).colwise() + p.b1.col(0)).cwiseMax(0.0f).matrix();
    y.colwise() += p.b2.col(0);
    int64_t correct = 0;
    for (int64_t i = 0; i < y.cols(); ++i) {
      Eigen::Index best = 0;
      y.col(i).maxCoeff(&best);
      correct += best == labels[static_cast<size_t>(i)];
    }
    return correct;
  }

 private:
  struct Layers {
    Map w1, b1, w2, b2;
  };
  Layers layers(float* p) const {
    float* b1 = p + hidden_ * inputs_;
    float* w2 = b1 + hidden_;
    float* b2 = w2 + outputs_ * hidden_;
    return {Map(p, hidden_, inputs_), Map(b1, hidden_, 1), Map(w2, outputs_, hidden_), Map(b2, outputs_, 1)};
  }

  int64_t inputs_, hidden_, outputs_;
};
