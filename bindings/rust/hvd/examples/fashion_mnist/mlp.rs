//! A multilayer perceptron with one hidden layer whose parameters lie in one flat buffer, so that one
//! allreduce carries a whole gradient. The layout is that of the C++ example: w1, b1, w2, b2, matrices column
//! by column.

#[derive(Clone, Copy)]
pub struct Mlp {
    pub inputs: usize,
    pub hidden: usize,
    pub outputs: usize,
}

/// Where the layers are in the flat buffer.
fn split(mlp: Mlp, p: &[f32]) -> (&[f32], &[f32], &[f32], &[f32]) {
    let (w1, rest) = p.split_at(mlp.hidden * mlp.inputs);
    let (b1, rest) = rest.split_at(mlp.hidden);
    let (w2, rest) = rest.split_at(mlp.outputs * mlp.hidden);
    (w1, b1, w2, &rest[..mlp.outputs])
}

/// y += a x
fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// Marsaglia's xorshift64*, and the sum of twelve uniform numbers for a normal one.
struct Random(u64);

impl Random {
    fn normal(&mut self) -> f32 {
        let uniform = |random: &mut Random| {
            random.0 ^= random.0 >> 12;
            random.0 ^= random.0 << 25;
            random.0 ^= random.0 >> 27;
            (random.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1u32 << 24) as f32
        };
        (0..12).map(|_| uniform(self)).sum::<f32>() - 6.0
    }
}

impl Mlp {
    pub fn parameter_count(self) -> usize {
        self.hidden * (self.inputs + 1) + self.outputs * (self.hidden + 1)
    }

    /// He et al., "Delving Deep into Rectifiers" (2015): zero biases, normal weights.
    pub fn initial(self, seed: u64) -> Vec<f32> {
        let mut random = Random(seed.max(1));
        let mut parameters = Vec::with_capacity(self.parameter_count());
        for (rows, columns) in [(self.hidden, self.inputs), (self.outputs, self.hidden)] {
            let deviation = (2.0 / columns as f32).sqrt();
            parameters.extend((0..rows * columns).map(|_| deviation * random.normal()));
            parameters.extend(vec![0.0; rows]);
        }
        parameters
    }

    /// Activations of the hidden layer and the logits, for one sample.
    fn forward(self, parameters: &[f32], x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (w1, b1, w2, b2) = split(self, parameters);
        let (mut h, mut y) = (b1.to_vec(), b2.to_vec());
        for (x, column) in x.iter().zip(w1.chunks_exact(self.hidden)) {
            add_scaled(&mut h, *x, column);
        }
        for (h, column) in h.iter_mut().zip(w2.chunks_exact(self.outputs)) {
            *h = h.max(0.0);
            add_scaled(&mut y, *h, column);
        }
        (h, y)
    }

    /// Sum over the samples (`inputs` numbers each) of the cross entropy with `labels`; the gradient of that
    /// sum goes to `gradient`.
    pub fn gradient(self, parameters: &[f32], samples: &[f32], labels: &[u8], gradient: &mut [f32]) -> f32 {
        gradient[..self.parameter_count()].fill(0.0);
        let (_, _, w2, _) = split(self, parameters);
        let (g1, rest) = gradient.split_at_mut(self.hidden * self.inputs);
        let (gb1, rest) = rest.split_at_mut(self.hidden);
        let (g2, rest) = rest.split_at_mut(self.outputs * self.hidden);
        let mut loss = 0.0;
        for (x, label) in samples.chunks_exact(self.inputs).zip(labels) {
            let (h, mut y) = self.forward(parameters, x);
            let highest = y.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            y.iter_mut().for_each(|y| *y = (*y - highest).exp());
            let sum: f32 = y.iter().sum();
            y.iter_mut().for_each(|y| *y /= sum);
            loss -= y[usize::from(*label)].max(1e-30).ln();
            y[usize::from(*label)] -= 1.0; // y is now the gradient by the logits
            add_scaled(&mut rest[..self.outputs], 1.0, &y);
            let mut dh = vec![0.0; self.hidden];
            for (j, column) in g2.chunks_exact_mut(self.outputs).enumerate() {
                add_scaled(column, h[j], &y);
                if h[j] > 0.0 {
                    dh[j] = w2[j * self.outputs..].iter().zip(&y).map(|(w, y)| w * y).sum();
                }
            }
            add_scaled(gb1, 1.0, &dh);
            for (x, column) in x.iter().zip(g1.chunks_exact_mut(self.hidden)) {
                add_scaled(column, *x, &dh);
            }
        }
        loss
    }

    /// How many samples are classified as `labels` says.
    pub fn count_correct(self, parameters: &[f32], samples: &[f32], labels: &[u8]) -> i64 {
        let right = |(x, label): &(&[f32], &u8)| {
            let (_, y) = self.forward(parameters, x);
            let best = (0..y.len()).max_by(|&a, &b| y[a].total_cmp(&y[b]));
            best == Some(usize::from(**label))
        };
        samples.chunks_exact(self.inputs).zip(labels).filter(right).count() as i64
    }
}
