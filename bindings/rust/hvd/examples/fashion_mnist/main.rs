//! Trains a small network on Fashion-MNIST with whoever is there: workers may die, leave and join while it
//! runs, and may be of other languages: `examples/fashion_mnist.cc` and the Go binding's example train the
//! same model.
//!
//!     hvdrun -np 3 --min-np 2 --max-np 4 --host-discovery-script ./hosts.sh fashion_mnist
mod idx_file;
mod mlp;

use hvd::{
    elastic, Call, Context, Fields, LogLevel, Options, Sampler, SamplerOptions, State, Status, Variables,
};
use hvd::{Error, Membership, ViewMut};
use idx_file::{read_images, Failure, Images};
use mlp::Mlp;

struct Settings {
    data: String,
    epochs: u64,
    batch: u64,
    hidden: usize,
    commit_every: i64,
    report_every: i64,
    seed: u64,
    rate: f32,
    target: f64,
}

const MOMENTUM: f32 = 0.9;

/// What must survive: under the same keys in every language.
struct Training {
    parameters: Vec<f32>,
    velocity: Vec<f32>,
    step: i64,
    sampler: Sampler,
}

impl Variables for Training {
    fn variables<'a>(&'a mut self, fields: &mut Fields<'a>) {
        fields.tensor("parameters", &mut self.parameters);
        fields.tensor("velocity", &mut self.velocity);
        fields.value("step", &mut self.step);
        fields.sampler("sampler", &self.sampler);
    }
}

/// Pixels of the chosen samples, from -0.5 to 0.5, and their labels.
fn gather(images: &Images, chosen: impl Iterator<Item = usize>) -> (Vec<f32>, Vec<u8>) {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for sample in chosen {
        let image = &images.data[sample * images.pixels..][..images.pixels];
        pixels.extend(image.iter().map(|&p| f32::from(p) / 255.0 - 0.5));
        labels.push(images.labels[sample]);
    }
    (pixels, labels)
}

fn report_recoveries(context: &Context, reported: &mut usize) -> hvd::Result<()> {
    let recoveries = context.recoveries()?;
    let told = if context.rank()? == 0 { *reported } else { recoveries.len() };
    for (i, r) in recoveries.iter().enumerate().skip(told) {
        let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
        let verb = match r.cause {
            Status::PeerLost => "go on",
            _ if r.to_size > r.from_size => "from now on",
            _ => "remain",
        };
        println!(
            "recovery {}: {}: {} workers {verb}; detection {:.1} ms, abort {:.1}, restore {:.1}, forming {:.1}, \
             connecting {:.1}, sync {:.1}, total {:.1} ms",
            i + 1,
            r.reason,
            r.to_size,
            ms(r.detection),
            ms(r.abort),
            ms(r.restore),
            ms(r.forming),
            ms(r.connecting),
            ms(r.sync),
            ms(r.total)
        );
    }
    *reported = recoveries.len();
    Ok(())
}

/// Each worker classifies its part of the test set; all get the result.
fn evaluate(
    context: &Context,
    place: &Membership,
    model: Mlp,
    test: &Images,
    parameters: &[f32],
) -> hvd::Result<f64> {
    let (rank, size) = (place.rank as usize, place.size as usize);
    let (x, labels) = gather(test, test.count * rank / size..test.count * (rank + 1) / size);
    let mut correct = [model.count_correct(parameters, &x, &labels)];
    context.allreduce_in_place("correct", &mut correct)?;
    Ok(correct[0] as f64 / test.count as f64)
}

/// Do all workers hold the same model, bit for bit? Compares the FNV-1a hash of the parameters.
fn compare_models(context: &Context, place: &Membership, parameters: &[f32]) -> hvd::Result<()> {
    let hash = parameters.iter().fold(14695981039346656037u64, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(1099511628211)
    });
    let (mut lowest, mut highest) = ([hash], [hash]);
    context.allreduce_in_place(Call::named("lowest hash").min(), &mut lowest)?;
    context.allreduce_in_place(Call::named("highest hash").max(), ViewMut::from(&mut highest))?;
    if lowest != highest {
        let why = format!("rank {} holds a model of its own ({hash:016x})", place.rank);
        return Err(Error::new(Status::CallbackFailed, why));
    }
    if place.rank == 0 {
        println!("all {} workers hold the same model ({hash:016x})", place.size);
    }
    Ok(())
}

struct Job {
    settings: Settings,
    train: Images,
    test: Images,
    model: Mlp,
    context: Context,
    reported: usize,
}

/// The training function of the elastic loop: begins wherever the state is, with whoever is there.
fn train(job: &mut Job, state: &mut State<Training>) -> hvd::Result<()> {
    let place = job.context.membership()?;
    report_recoveries(&job.context, &mut job.reported)?;
    let count = state.parameters.len();
    let mut sums = vec![0.0f32; count + 1]; // gradient and loss
    let mut chosen = Vec::new();
    loop {
        let batch = state.sampler.next(None, &mut chosen)?;
        if batch.total() == 0 {
            // The epoch is over.
            if batch.epoch() + 1 >= job.settings.epochs {
                break;
            }
            state.sampler.set_epoch(batch.epoch() + 1)?;
            continue;
        }
        let (x, labels) = gather(&job.train, chosen.iter().map(|&sample| sample as usize));
        sums[count] = job.model.gradient(&state.parameters, &x, &labels, &mut sums);
        job.context.allreduce_in_place("gradient", &mut sums)?;
        let scale = 1.0 / batch.total() as f32;
        let training = &mut **state;
        for ((p, v), g) in training.parameters.iter_mut().zip(&mut training.velocity).zip(&sums) {
            *v = MOMENTUM * *v + scale * g;
            *p -= job.settings.rate * *v;
        }
        state.step += 1;
        state.sampler.record(&batch)?;
        if place.rank == 0 && state.step % job.settings.report_every == 0 {
            let (epoch, step, loss) = (batch.epoch() + 1, state.step, sums[count] * scale);
            println!("epoch {epoch} step {step} loss {loss:.3} workers {}", place.size);
        }
        if state.step % job.settings.commit_every == 0 {
            state.commit()?;
        }
    }
    let accuracy = evaluate(&job.context, &place, job.model, &job.test, &state.parameters)?;
    compare_models(&job.context, &place, &state.parameters)?;
    if place.rank == 0 {
        println!("test accuracy {accuracy:.4}");
    }
    if accuracy >= job.settings.target {
        return Ok(());
    }
    // Ends the run, and the job: no worker says that it is done.
    let why = format!("the accuracy is below the target of {:.4}", job.settings.target);
    Err(Error::new(Status::CallbackFailed, why))
}

fn parse() -> Result<Settings, Failure> {
    let data = std::env::var("HVD_FASHION_MNIST_DIR").unwrap_or("/usr/share/datasets/fashion-mnist".into());
    let mut s = Settings {
        data,
        epochs: 8,
        batch: 64,
        hidden: 128,
        commit_every: 10,
        report_every: 20,
        seed: 1,
        rate: 0.02,
        target: 0.84,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        match name.as_str() {
            "--data" => s.data = value,
            "--epochs" => s.epochs = value.parse()?,
            "--batch" => s.batch = value.parse()?,
            "--hidden" => s.hidden = value.parse()?,
            "--commit-every" => s.commit_every = value.parse::<i64>()?.max(1),
            "--report-every" => s.report_every = value.parse::<i64>()?.max(1),
            "--seed" => s.seed = value.parse()?,
            "--rate" => s.rate = value.parse()?,
            "--target" => s.target = value.parse()?,
            _ => {
                return Err(format!(
                "unknown option {name}: expected --data DIR, --epochs, --batch, --hidden, --commit-every, \
                     --report-every, --seed, --rate or --target"
            )
                .into())
            }
        }
    }
    Ok(s)
}

fn work() -> Result<(), Failure> {
    let settings = parse()?;
    let (train_set, test) = (read_images(&settings.data, "train")?, read_images(&settings.data, "t10k")?);
    let model = Mlp { inputs: train_set.pixels, hidden: settings.hidden, outputs: 10 };
    let mut options = Options::new()?;
    options.set_log(LogLevel::Default, |_, line| eprintln!("hvd: {line}"))?;
    let context = Context::with_options(&options)?;
    let place = context.membership()?;
    let (worker, rank, size) = (place.worker, place.rank, place.size);
    println!("worker {worker} pid {} joins as rank {rank} of {size} (Rust)", std::process::id());

    let samples = SamplerOptions {
        samples: train_set.count as u64,
        batch_size: settings.batch,
        seed: settings.seed,
        ..Default::default()
    };
    let parameters = model.initial(settings.seed);
    let velocity = vec![0.0; parameters.len()];
    let sampler = Sampler::new(&context, &samples)?;
    let mut state = State::new(&context, Training { parameters, velocity, step: 0, sampler })?;
    let mut job = Job { settings, train: train_set, test, model, context: context.clone(), reported: 0 };
    let result = elastic::run(&mut state, |state| train(&mut job, state));
    if let Some(removed) = result.as_ref().err().filter(|e| e.status() == Status::Removed) {
        println!("worker pid {} leaves: {}", std::process::id(), removed.message());
        return Ok(());
    }
    // Says that this worker is done; after a failed run it only takes leave.
    let end = context.shutdown(None);
    result?;
    Ok(end?)
}

fn main() -> std::process::ExitCode {
    match work() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            std::process::ExitCode::FAILURE
        }
    }
}
