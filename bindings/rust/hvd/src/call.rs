//! What an operation is called and how it runs.
use std::time::Duration;

use hvd_sys as sys;

use crate::set::ProcessSet;

/// How values are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Reduction {
    /// Their sum.
    Sum = sys::HVD_REDUCTION_SUM,
    /// Their sum divided by the number of ranks; of integers rounded towards zero.
    Average = sys::HVD_REDUCTION_AVERAGE,
    /// The smallest.
    Min = sys::HVD_REDUCTION_MIN,
    /// The largest.
    Max = sys::HVD_REDUCTION_MAX,
    /// Their product.
    Product = sys::HVD_REDUCTION_PRODUCT,
}

/// An operation's name and how it runs. A `&str` is a call with every default:
///
/// ```
/// # use hvd::Call;
/// # use std::time::Duration;
/// let gradient = Call::named("gradient").average().priority(3).timeout(Duration::from_secs(30));
/// ```
///
/// [`Call::default`] has no name: such operations are numbered in the order in which they are made, which
/// must be the same on all ranks.
///
/// All ranks (of the generation, or of the process set) make each call under the same name. What a collective
/// does not use must be left at its default.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Call<'a> {
    pub(crate) name: &'a str,
    pub(crate) reduction: Option<Reduction>,
    pub(crate) priority: i32,
    pub(crate) prescale: f64,
    pub(crate) postscale: f64,
    pub(crate) splits: Option<&'a [i64]>,
    pub(crate) set: Option<&'a ProcessSet>,
    pub(crate) timeout: Option<Duration>,
}

impl<'a> Call<'a> {
    /// A call with every default.
    pub fn named(name: &'a str) -> Call<'a> {
        Call { name, ..Call::default() }
    }
    /// How values are combined (allreduce, reducescatter); [`Reduction::Sum`] unless given.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = Some(reduction);
        self
    }
    /// [`Reduction::Sum`]
    pub fn sum(self) -> Self {
        self.reduction(Reduction::Sum)
    }
    /// [`Reduction::Average`]
    pub fn average(self) -> Self {
        self.reduction(Reduction::Average)
    }
    /// [`Reduction::Min`]
    pub fn min(self) -> Self {
        self.reduction(Reduction::Min)
    }
    /// [`Reduction::Max`]
    pub fn max(self) -> Self {
        self.reduction(Reduction::Max)
    }
    /// [`Reduction::Product`]
    pub fn product(self) -> Self {
        self.reduction(Reduction::Product)
    }
    /// Of operations that are ready, higher ones run first.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
    /// Factor of the inputs before the reduction.
    pub fn prescale(mut self, factor: f64) -> Self {
        self.prescale = factor;
        self
    }
    /// Factor of the result.
    pub fn postscale(mut self, factor: f64) -> Self {
        self.postscale = factor;
        self
    }
    /// alltoall: rows to each member; reducescatter: rows that each member gets.
    pub fn splits(mut self, rows: &'a [i64]) -> Self {
        self.splits = Some(rows);
        self
    }
    /// Who takes part; all ranks unless given.
    pub fn on(mut self, set: &'a ProcessSet) -> Self {
        self.set = Some(set);
        self
    }
    /// Longest wait for ranks that do not call; option `operation_timeout` unless given.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<'a> From<&'a str> for Call<'a> {
    fn from(name: &'a str) -> Call<'a> {
        Call::named(name)
    }
}
impl<'a> From<&'a String> for Call<'a> {
    fn from(name: &'a String) -> Call<'a> {
        Call::named(name)
    }
}
