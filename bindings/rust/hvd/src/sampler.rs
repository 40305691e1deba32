//! Samples of a data set, each once an epoch, whoever comes and goes.
use std::ptr;

use hvd_sys as sys;
use sys::Sized0;

use crate::context::Context;
use crate::error::{check, Error, Result};

/// What becomes of a last round that the ranks can't share evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Padding {
    /// Dealt as it is: each sample exactly once.
    #[default]
    None = sys::HVD_PADDING_NONE,
    /// Filled up with the first samples of the epoch.
    Repeat = sys::HVD_PADDING_REPEAT,
    /// Left out of this epoch.
    Drop = sys::HVD_PADDING_DROP,
}

/// How a data set is dealt out: the same on all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SamplerOptions {
    /// Of the data set.
    pub samples: u64,
    /// Of one rank.
    pub batch_size: u64,
    /// Of the order.
    pub seed: u64,
    /// Not shuffled: every epoch is 0, 1, 2 ...
    pub in_order: bool,
    /// Of the last round.
    pub padding: Padding,
}

/// One rank's part of a round.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    raw: sys::hvd_sampler_batch,
}

impl Batch {
    /// Generation in which it was dealt.
    pub fn generation(&self) -> u64 {
        self.raw.generation
    }
    /// Its epoch.
    pub fn epoch(&self) -> u64 {
        self.raw.epoch
    }
    /// Where in the epoch's order the round begins.
    pub fn position(&self) -> u64 {
        self.raw.position
    }
    /// Samples of this rank.
    pub fn count(&self) -> u64 {
        self.raw.count
    }
    /// Samples of all ranks together; 0: the epoch is over.
    pub fn total(&self) -> u64 {
        self.raw.total
    }
}

/// Where a sampler is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SamplerInfo {
    pub epoch: u64,
    pub samples: u64,
    pub batch_size: u64,
    /// Of this epoch, by all ranks.
    pub processed: u64,
    pub remaining: u64,
    /// Left in this epoch with the present size.
    pub rounds: u64,
}

/// Deals the samples `0 .. samples` out to the ranks, each exactly once in an epoch, also when the number of
/// ranks changes on the way.
#[derive(Debug)]
pub struct Sampler {
    ptr: *mut sys::hvd_sampler,
    batch_size: usize,
}

// SAFETY: "Functions may be called from any thread".
unsafe impl Send for Sampler {}
// SAFETY: as above.
unsafe impl Sync for Sampler {}

impl Sampler {
    /// A sampler at the beginning of epoch 0.
    pub fn new(context: &Context, options: &SamplerOptions) -> Result<Sampler> {
        let handle = context.get();
        let mut raw = sys::hvd_sampler_options::sized();
        raw.samples = options.samples;
        raw.batch_size = options.batch_size;
        raw.seed = options.seed;
        raw.in_order = i32::from(options.in_order);
        raw.padding = options.padding as i32;
        let mut ptr = ptr::null_mut();
        // SAFETY: options are copied; ptr is a place for the result.
        check(|e| unsafe { sys::hvd_sampler_create(handle, &raw, &mut ptr, e) })?;
        Ok(Sampler { ptr, batch_size: options.batch_size as usize })
    }

    pub(crate) fn ptr(&self) -> *mut sys::hvd_sampler {
        self.ptr
    }

    /// The first round that is not recorded (the same until it is), or with `after` the one that follows
    /// that, to load data ahead. `indices` gets this rank's samples.
    pub fn next(&self, after: Option<&Batch>, indices: &mut Vec<u64>) -> Result<Batch> {
        indices.resize(self.batch_size, 0);
        let after = after.map_or(ptr::null(), |batch| ptr::from_ref(&batch.raw));
        let mut batch = sys::hvd_sampler_batch::sized();
        // SAFETY: the handle is ours; indices.len() is the room. Likewise below.
        let result = check(|e| unsafe {
            sys::hvd_sampler_next(self.ptr, after, indices.as_mut_ptr(), indices.len(), &mut batch, e)
        });
        indices.truncate(if result.is_ok() { batch.count as usize } else { 0 });
        result?;
        Ok(Batch { raw: batch })
    }

    /// The round was processed: every rank calls it at the same point.
    pub fn record(&self, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_sampler_record(self.ptr, &batch.raw, e) })
    }

    /// Begins another epoch; the one that it is in changes nothing.
    pub fn set_epoch(&self, epoch: u64) -> Result<()> {
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_sampler_set_epoch(self.ptr, epoch, e) })
    }

    /// Where it is.
    pub fn info(&self) -> Result<SamplerInfo> {
        let mut i = sys::hvd_sampler_info::sized();
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_sampler_get_info(self.ptr, &mut i, e) })?;
        Ok(SamplerInfo {
            epoch: i.epoch,
            samples: i.samples,
            batch_size: i.batch_size,
            processed: i.processed,
            remaining: i.remaining,
            rounds: i.rounds,
        })
    }

    /// For a checkpoint of the program's own: the same bytes on every rank.
    pub fn save(&self) -> Result<Vec<u8>> {
        let mut data = vec![0; sys::HVD_SAMPLER_SAVED_BYTES];
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_sampler_save(self.ptr, data.as_mut_ptr().cast(), data.len(), e) })?;
        Ok(data)
    }

    /// Takes what [`Sampler::save`] gave, on all ranks alike.
    pub fn load(&self, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Err(Error::invalid("no bytes to load a sampler from"));
        }
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_sampler_load(self.ptr, data.as_ptr().cast(), data.len(), e) })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // SAFETY: any handle may be given.
        unsafe { sys::hvd_sampler_destroy(self.ptr) }
    }
}
