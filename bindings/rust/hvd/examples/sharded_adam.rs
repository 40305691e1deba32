//! Adam, whose moments are dealt out over the ranks. Any worker may die or join at any time.
//!
//! Each rank holds the moments of its part of the weights, and a copy of another rank's. It moves its part of
//! the weights, and an allgather gives everybody all of them. Each step is committed while the next one
//! computes.
use hvd::{elastic, Call, Context, Fields, Shard, State, Variables};

const WEIGHTS: usize = 1000;

struct Training {
    weights: Vec<f32>,
    m: Shard<f32>,
    v: Shard<f32>,
    step: i64,
}

impl Variables for Training {
    fn variables<'a>(&'a mut self, fields: &mut Fields<'a>) {
        fields.tensor("weights", &mut self.weights);
        fields.shard("adam.m", &mut self.m);
        fields.shard("adam.v", &mut self.v);
        fields.value("step", &mut self.step);
    }
}

impl Training {
    fn new(context: &Context) -> hvd::Result<Training> {
        let (m, v) = (Shard::new(context, WEIGHTS as i64, 1)?, Shard::new(context, WEIGHTS as i64, 1)?);
        Ok(Training { weights: vec![0.0; WEIGHTS], m, v, step: 0 })
    }
    /// Each weight wants to be its own number.
    fn gradient(&self) -> Vec<f32> {
        self.weights.iter().enumerate().map(|(i, w)| w - i as f32 / WEIGHTS as f32).collect()
    }
    /// This rank's part of the weights after a step.
    fn moved(&mut self, gradient: &[f32]) -> Vec<f32> {
        let from = self.m.offset() as usize;
        let (m, v) = (&mut *self.m, &mut *self.v);
        let mut part = self.weights[from..from + m.len()].to_vec();
        for (i, weight) in part.iter_mut().enumerate() {
            let g = gradient[from + i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.99 * v[i] + 0.01 * g * g;
            *weight -= 0.01 * m[i] / (v[i].sqrt() + 1e-8);
        }
        part
    }
}

fn main() -> hvd::Result<()> {
    let context = Context::new()?;
    let mut state = State::new(&context, Training::new(&context)?)?;
    // More workers were lost than there are copies: this program has no checkpoint, and begins anew.
    state.on_lost(|training, sentence| {
        eprintln!("{sentence}");
        training.weights.fill(0.0);
        training.m.fill(0.0);
        training.v.fill(0.0);
        training.step = 0;
        Ok(())
    })?;
    elastic::run(&mut state, |training| -> hvd::Result<()> {
        let mut begun = false;
        while training.step < 500 {
            let mut gradient = training.gradient();
            context.allreduce_in_place(Call::named("gradient").average(), &mut gradient)?;
            if begun {
                training.commit_end()?; // from here on the weights may change
            }
            let part = training.moved(&gradient);
            context.allgather_into("weights", &part, &mut training.weights)?;
            training.step += 1;
            // SAFETY: nothing writes weights or moments before commit_end.
            unsafe { training.commit_begin()? };
            begun = true;
        }
        if begun {
            training.commit_end()?;
        }
        Ok(())
    })?;
    let wrong = state.gradient().into_iter().fold(0.0f32, |worst, g| worst.max(g.abs()));
    println!(
        "rank {} of {}: step {}, wrong by {wrong:.3} at most",
        context.rank()?,
        context.size()?,
        state.step
    );
    context.shutdown(None)
}
