//! [burn](https://burn.dev)'s modules and optimizers in elastic jobs.
//!
//! [`Learner`] holds a module and its optimizer. A state of libhvd keeps it ([`hvd::Object`]), and
//! [`Learner::step`] takes an optimizer's step with the mean of all ranks' gradients. The program chooses
//! burn's backend; parameters are float16 to float64.
//!
//! ```no_run
//! use burn::{module::Module, nn, optim::SgdConfig, tensor::{Device, Distribution, Tensor}};
//! use hvd::{elastic, Context, State};
//! use hvd_burn::Learner;
//!
//! # fn main() -> hvd::Result<()> {
//! struct Training { learner: Learner<nn::Linear>, step: i64 }
//!
//! let device = Device::default().autodiff();
//! let context = Context::new()?;
//! let learner = Learner::new(nn::LinearConfig::new(1, 1).init(&device), SgdConfig::new().init());
//! let mut state = State::with(&context, Training { learner, step: 0 }, |training, fields| {
//!     fields.object("learner", &mut training.learner);
//!     fields.value("step", &mut training.step);
//! })?;
//! elastic::run(&mut state, |training| -> hvd::Result<()> {
//!     while training.step < 1000 {
//!         let x = Tensor::<2>::random([32, 1], Distribution::Default, &device);
//!         let wrong = training.learner.module().forward(x.clone()) - (x * 2.0 + 1.0);
//!         training.learner.step(&context, "gradients", 0.1, wrong.square().mean())?;
//!         training.step += 1;
//!         if training.step % 10 == 0 {
//!             training.commit()?;
//!         }
//!     }
//!     Ok(())
//! })?;
//! context.shutdown(None)
//! # }
//! ```
use std::io;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, DType, Tensor, TensorData};
use burn_pack::{Reader, Writer};
use hvd::{Call, Context};

/// A module and its optimizer, which survive together.
///
/// As an object of a state it is saved whole at each commit, in burn's own format, which also carries the
/// identities of parameters: after a sync all ranks' optimizers know their parameters by the same ones. Ranks
/// with the same values save the same bytes, as `divergence_every` asks of them.
#[derive(Clone)]
pub struct Learner<M> {
    module: Option<M>, // None while a step has it, and after one that panicked
    optimizer: ModuleOptimizer,
}

impl<M> std::fmt::Debug for Learner<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Learner").finish_non_exhaustive()
    }
}

impl<M: Module> Learner<M> {
    /// `module` must be on a device with `autodiff`, and have the same parameters on all ranks. Their values
    /// may differ: the first sync of a state gives all ranks those of one.
    pub fn new(module: M, optimizer: ModuleOptimizer) -> Learner<M> {
        Learner { module: Some(module), optimizer }
    }

    /// The module as it is now. Panics after a step that panicked.
    pub fn module(&self) -> &M {
        self.module.as_ref().expect("a step of this Learner's panicked")
    }

    /// The optimizer, for what is set while it is used.
    pub fn optimizer(&mut self) -> &mut ModuleOptimizer {
        &mut self.optimizer
    }

    /// Goes one step against the mean of all ranks' gradients of `loss`, each rank's own, at learning rate
    /// `rate`. All ranks call it in the same order, under the same name; it blocks until all have. An error,
    /// such as [`hvd::Status::PeerLost`], leaves the learner as it was: pass it on.
    pub fn step(
        &mut self,
        context: &Context,
        name: &str,
        rate: impl Into<ModuleLearningRate>,
        loss: Tensor<1>,
    ) -> hvd::Result<()> {
        let gradients = GradientsParams::from_grads(loss.backward(), self.module());
        let mean = average_gradients(context, name, self.module(), gradients)?;
        self.apply(rate, mean);
        Ok(())
    }

    /// Goes one step against `gradients`, which [`average_gradients`] has made the same on all ranks.
    pub fn apply(&mut self, rate: impl Into<ModuleLearningRate>, gradients: GradientsParams) {
        self.module();
        self.module = self.module.take().map(|module| self.optimizer.step(rate, module, gradients));
    }
}

/// The mean over all ranks of the gradients of `module`'s parameters, in one operation for float64 (under
/// `name` with ".f64" behind it) and one for all others, which are added as float32. They travel through host
/// memory.
///
/// The same parameters must have gradients on all ranks: where their elements are not as many, the operation
/// fails with [`hvd::Status::Mismatch`].
pub fn average_gradients<M: Module>(
    context: &Context,
    name: &str,
    module: &M,
    gradients: GradientsParams,
) -> hvd::Result<GradientsParams> {
    let mut flat = Flat { gradients: &gradients, single: Vec::new(), double: Vec::new() };
    module.visit(&mut flat);
    let Flat { mut single, mut double, .. } = flat;
    if !single.is_empty() {
        context.allreduce_in_place(Call::named(name).average(), &mut single)?;
    }
    if !double.is_empty() {
        context.allreduce_in_place(Call::named(&format!("{name}.f64")).average(), &mut double)?;
    }
    let mut spread = Spread { from: gradients, single: &single, double: &double, to: GradientsParams::new() };
    module.visit(&mut spread);
    Ok(spread.to)
}

/// Gradients one behind the other, in the order in which a module shows its parameters.
struct Flat<'a> {
    gradients: &'a GradientsParams,
    single: Vec<f32>,
    double: Vec<f64>,
}

impl ModuleVisitor for Flat<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else { return };
        let data = gradient.into_data();
        match data.dtype() {
            DType::F64 => self.double.extend(data.iter::<f64>()),
            _ => self.single.extend(data.iter::<f32>()),
        }
    }
}

/// The way back.
struct Spread<'a> {
    from: GradientsParams,
    single: &'a [f32],
    double: &'a [f64],
    to: GradientsParams,
}

impl ModuleVisitor for Spread<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(own) = self.from.remove::<D>(param.id) else { return };
        let (shape, dtype, device) = (own.shape(), own.dtype(), own.device());
        let data = match dtype {
            DType::F64 => TensorData::new(taken(&mut self.double, shape.num_elements()), shape),
            _ => TensorData::new(taken(&mut self.single, shape.num_elements()), shape),
        };
        self.to.register(param.id, Tensor::<D>::from_data(data, (&device, dtype)));
    }
}

fn taken<T: Clone>(from: &mut &[T], count: usize) -> Vec<T> {
    let (first, rest) = from.split_at(count);
    *from = rest;
    first.to_vec()
}

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// An optimizer's record with its tensors in the order of their names. burn writes them as a hash map has
/// them, each time in another order, for which a rank would be named as one that has diverged.
fn ordered(record: Bytes) -> Result<Bytes, burn_pack::Error> {
    let reader = Reader::from_bytes(record)?;
    let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
    let mut writer = Writer::new(reader.into_tensors()?); // sorted
    for (key, value) in scalars {
        writer = writer.with_scalar(&key, value);
    }
    for (key, value) in metadata {
        writer = writer.with_metadata(&key, &value);
    }
    writer.into_bytes()
}

impl<M: Module> hvd::Object for Learner<M> {
    /// The length of the module's record as 8 bytes, little-endian; the record; the optimizer's record.
    fn save(&mut self, out: &mut dyn io::Write) -> io::Result<()> {
        let module = self.module().clone().into_record().into_bytes().map_err(failed)?;
        let optimizer = ordered(self.optimizer.into_bytes().map_err(failed)?).map_err(failed)?;
        out.write_all(&(module.len() as u64).to_le_bytes())?;
        out.write_all(&module)?;
        out.write_all(&optimizer)
    }

    fn load(&mut self, data: &[u8]) -> io::Result<()> {
        let (module, optimizer) = data
            .split_first_chunk::<8>()
            .and_then(|(length, rest)| {
                rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
            })
            .ok_or_else(|| failed(format!("{} bytes are no learner", data.len())))?;
        let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(module.to_vec())).map_err(failed)?;
        // Both are made before either is replaced.
        let optimizer = Bytes::from_bytes_vec(optimizer.to_vec());
        let optimizer = self.optimizer.clone().from_bytes(optimizer).map_err(failed)?;
        let module = self.module().clone().try_load_record(record).map_err(failed)?;
        (self.module, self.optimizer) = (Some(module), optimizer);
        Ok(())
    }
}
