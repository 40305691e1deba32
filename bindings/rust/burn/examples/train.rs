//! Trains a small network of burn's on y = sin(x), each worker on its own points. Any worker may die or join
//! at any time: `hvdrun -np 3 --min-np 2 -- train [STEPS [LOSE_AT]]`. At step LOSE_AT the last of the first
//! three workers crashes.
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Distribution, Tensor};
use hvd::{elastic, Context, State};
use hvd_burn::Learner;

#[derive(Module, Debug)]
struct Network {
    hidden: Linear,
    output: Linear,
}

impl Network {
    fn new(device: &Device) -> Network {
        Network {
            hidden: LinearConfig::new(1, 32).init(device),
            output: LinearConfig::new(32, 1).init(device),
        }
    }

    fn wrong(&self, x: Tensor<2>) -> Tensor<1> {
        let y = self.output.forward(tanh(self.hidden.forward(x.clone())));
        (y - x.sin()).square().mean()
    }
}

struct Training {
    learner: Learner<Network>,
    step: i64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |index| std::env::args().nth(index).map(|text| text.parse::<i64>()).transpose();
    let (steps, lose_at) = (number(1)?.unwrap_or(1000), number(2)?);
    let device = Device::flex().autodiff();
    let context = Context::new()?;
    let learner = Learner::new(Network::new(&device), AdamConfig::new().init());
    let mut state = State::with(&context, Training { learner, step: 0 }, |training, fields| {
        fields.object("learner", &mut training.learner);
        fields.value("step", &mut training.step);
    })?;
    elastic::run(&mut state, |training| -> hvd::Result<()> {
        while training.step < steps {
            if Some(training.step) == lose_at && context.rank()? == 2 && context.generation()? == 1 {
                std::process::abort();
            }
            let x = Tensor::random([64, 1], Distribution::Uniform(-3.0, 3.0), &device);
            let wrong = training.learner.module().wrong(x);
            training.learner.step(&context, "gradients", 0.01, wrong)?;
            training.step += 1;
            if training.step % 10 == 0 {
                training.commit()?;
            }
        }
        Ok(())
    })?;
    let points = Tensor::<1>::from_floats([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], &device).reshape([6, 1]);
    let wrong = state.learner.module().wrong(points).into_scalar::<f32>();
    println!("rank {} of {}: step {}, wrong by {wrong:.9}", context.rank()?, context.size()?, state.step);
    context.shutdown(None)?;
    Ok(())
}
