//! A learner in this process, and jobs: two ranks that average, three that lose a worker.
use std::path::Path;
use std::process::Command;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{DType, Device, Tensor};
use hvd::{Context, Object, Options, Status};
use hvd_burn::{average_gradients, Learner};

fn linear() -> Learner<Linear> {
    let device = Device::flex().autodiff();
    Learner::new(LinearConfig::new(3, 2).init(&device), AdamConfig::new().init())
}

fn go(learner: &mut Learner<Linear>, steps: usize) {
    let device = Device::flex().autodiff();
    for step in 0..steps {
        let x = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [step as f32, 0.5, -1.0]], &device);
        let wrong = learner.module().forward(x).square().mean();
        let gradients = GradientsParams::from_grads(wrong.backward(), learner.module());
        learner.apply(0.1, gradients);
    }
}

fn weights(learner: &Learner<Linear>) -> Vec<f32> {
    learner.module().weight.val().into_data().iter::<f32>().collect()
}

fn saved(learner: &mut Learner<Linear>) -> Vec<u8> {
    let mut bytes = Vec::new();
    learner.save(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_was_saved_goes_on_as_it_was() {
    let (mut one, mut other) = (linear(), linear());
    go(&mut one, 5);
    let bytes = saved(&mut one);
    other.load(&bytes).unwrap();
    assert_eq!(weights(&one), weights(&other));
    for _ in 0..16 {
        assert_eq!(bytes, saved(&mut other)); // also when it was loaded anew
        other.load(&bytes).unwrap();
    }
    go(&mut one, 5);
    go(&mut other, 5); // as far only if Adam's moments came along
    assert_eq!(weights(&one), weights(&other));
    assert_eq!(saved(&mut one), saved(&mut other));
    one.load(&bytes).unwrap();
    assert_ne!(weights(&one), weights(&other));
}

#[test]
fn what_is_no_learner_changes_nothing() {
    let mut learner = linear();
    go(&mut learner, 2);
    let (good, before) = (saved(&mut learner), weights(&learner));
    for bad in [&good[..4], &good[..good.len() / 2], b"no record at all"] {
        assert!(learner.load(bad).is_err(), "{} bytes", bad.len());
        assert_eq!(before, weights(&learner));
    }
    let device = Device::flex().autodiff();
    let mut other = Learner::new(LinearConfig::new(4, 2).init(&device), AdamConfig::new().init());
    let refused = learner.load(&saved(&mut other)).unwrap_err().to_string();
    assert!(refused.contains("shape"), "{refused}");
    assert_eq!(before, weights(&learner));
}

/// Parameters that are averaged in one operation, and one that is averaged in another.
#[derive(Module, Debug)]
struct Mixed {
    half: Param<Tensor<1>>,
    double: Param<Tensor<1>>,
    single: Param<Tensor<2>>,
}

/// A worker of the job of `the_mean_is_that_of_all_ranks`; elsewhere it does nothing.
#[test]
fn worker() {
    if std::env::var_os("HVD_TEST_ROLE").is_none() {
        return;
    }
    let context = Context::with_options(&Options::new().unwrap()).unwrap();
    let device = Device::flex();
    let one = |values: [f32; 2], dtype| Tensor::<1>::from_floats(values, &device).cast(dtype);
    let two = |values: [f32; 2]| Tensor::<2>::from_floats([values], &device);
    let module = Mixed {
        half: Param::from_tensor(one([0.0, 0.0], DType::F16)),
        double: Param::from_tensor(one([0.0, 0.0], DType::F64)),
        single: Param::from_tensor(two([0.0, 0.0])),
    };
    let mine = context.rank().unwrap() as f32; // of ranks 0 and 1, so that the mean adds a half
    let mut gradients = GradientsParams::new();
    gradients.register(module.half.id, one([1.0 + mine, 2.0], DType::F16));
    gradients.register(module.double.id, one([3.0, 4.0 + mine], DType::F64));
    gradients.register(module.single.id, two([5.0 + mine, 6.0 + mine]));
    let mean = average_gradients(&context, "mixed", &module, gradients).unwrap();
    let half = mean.get::<1>(module.half.id).unwrap().into_data();
    let double = mean.get::<1>(module.double.id).unwrap().into_data();
    let single = mean.get::<2>(module.single.id).unwrap().into_data();
    assert_eq!([half.dtype(), double.dtype(), single.dtype()], [DType::F16, DType::F64, DType::F32]);
    assert_eq!(half.iter::<f32>().collect::<Vec<_>>(), [1.5, 2.0]);
    assert_eq!(double.iter::<f64>().collect::<Vec<_>>(), [3.0, 4.5]);
    assert_eq!(single.iter::<f32>().collect::<Vec<_>>(), [5.5, 6.5]);
    // Parameters that have gradients on one rank only.
    let mut uneven = GradientsParams::new();
    uneven.register(module.half.id, one([1.0, 2.0], DType::F16));
    if mine == 0.0 {
        uneven.register(module.single.id, two([5.0, 6.0]));
    }
    let refused = average_gradients(&context, "uneven", &module, uneven).unwrap_err();
    assert_eq!(refused.status(), Status::Mismatch, "{refused}");
    println!("averaged over {} ranks", context.size().unwrap());
    context.shutdown(None).unwrap();
}

/// What a job of hvdrun's prints, which must succeed.
fn hvdrun(arguments: &[&str], worker: &Path, its: &[&str]) -> String {
    let bin = std::env::var_os("HVD_TEST_BIN").expect("HVD_TEST_BIN names hvdrun's directory");
    let run = Command::new(Path::new(&bin).join("hvdrun"))
        .args(arguments)
        .args(["--set", "elastic_timeout=40", "--set", "operation_timeout=40", "--"])
        .arg(worker)
        .args(its)
        .env("HVD_TEST_ROLE", "worker")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{text}");
    text
}

#[test]
fn the_mean_is_that_of_all_ranks() {
    let program = std::env::current_exe().unwrap();
    let text = hvdrun(&["-np", "2", "-H", "localhost:2"], &program, &["--exact", "worker", "--nocapture"]);
    assert_eq!(text.matches("averaged over 2 ranks").count(), 2, "{text}");
}

/// Three workers train, of which one crashes at step 155. The others go on from the commit at step 150, and
/// `left` workers end with the same network. A commit at which ranks save other bytes ends the job.
fn loses_a_worker(flags: &[&str], left: usize) {
    let train = std::env::current_exe().unwrap().with_file_name("../examples/train");
    let common =
        ["-np", "3", "-H", "localhost:3", "--set", "divergence_every=1", "--set", "on_divergence=stop"];
    let text = hvdrun(&[&common[..], flags].concat(), &train, &["300", "155"]);
    let end = format!(" of {left}: step 300, wrong by ");
    let ends: Vec<&str> = text.lines().filter_map(|line| line.split_once(&end)).map(|l| l.1).collect();
    assert_eq!(ends.len(), left, "{text}");
    assert!(ends.iter().all(|wrong| *wrong == ends[0]), "{text}");
    assert!(ends[0].parse::<f32>().unwrap() < 0.05, "{text}");
}

#[test]
fn two_go_on_without_the_third() {
    loses_a_worker(&["--min-np", "2", "--set", "restart=false"], 2);
}

#[test]
fn a_newcomer_takes_the_lost_ones_place() {
    loses_a_worker(&["--min-np", "3", "--set", "restart_delay_min=0.05"], 3);
}
