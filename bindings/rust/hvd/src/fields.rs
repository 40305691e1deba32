//! The fields of a value: what of it must survive.
use std::borrow::Cow;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use hvd_sys as sys;

use crate::error::{Error, Result};
use crate::object::Object;
use crate::sampler::Sampler;
use crate::shard::{AnyShard, Shard};
use crate::tensor::{bytes_of, Element, ViewMut};

/// Names what of a value must survive. Every rank names the same keys with the same kinds, dtypes and shapes.
///
/// It is asked at the beginning, and again before each commit, restore and sync: the fields named must be the
/// same ones, in the same memory.
pub trait Variables {
    /// Calls a method of `fields` for each field.
    fn variables<'a>(&'a mut self, fields: &mut Fields<'a>);
}

/// Plain values of a state: numbers, and arrays of them.
pub trait Plain: plain::Plain {}

mod plain {
    /// Any bytes are a value of it, and it has no padding.
    pub trait Plain: Copy {}
}

macro_rules! plain {
    ($($type:ty),*) => { $(
        impl plain::Plain for $type {}
        impl Plain for $type {}
    )* };
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, u128, i128, usize, isize, f32, f64);
impl<T: Plain, const N: usize> plain::Plain for [T; N] {}
impl<T: Plain, const N: usize> Plain for [T; N] {}

pub(crate) enum Field<'a> {
    Tensor(ViewMut<'a>),
    Value(*mut c_void, usize, PhantomData<&'a mut [u8]>),
    Object(&'a mut dyn Object),
    Sampler(&'a Sampler),
    Shard(&'a mut dyn AnyShard),
}

/// Collects the fields of a value: see [`Variables`].
pub struct Fields<'a> {
    pub(crate) fields: Vec<(Cow<'static, str>, Field<'a>)>,
}

impl std::fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.fields.iter().map(|(key, _)| key)).finish()
    }
}

impl<'a> Fields<'a> {
    fn add(&mut self, key: impl Into<Cow<'static, str>>, field: Field<'a>) {
        self.fields.push((key.into(), field));
    }
    /// A tensor in the program's memory.
    pub fn tensor(&mut self, key: impl Into<Cow<'static, str>>, data: impl Into<ViewMut<'a>>) {
        self.add(key, Field::Tensor(data.into()));
    }
    /// A counter or another plain value of at most 65536 bytes.
    pub fn value<T: Plain>(&mut self, key: impl Into<Cow<'static, str>>, value: &'a mut T) {
        self.add(key, Field::Value(ptr::from_mut(value).cast(), std::mem::size_of::<T>(), PhantomData));
    }
    /// Something that saves and loads itself.
    pub fn object(&mut self, key: impl Into<Cow<'static, str>>, object: &'a mut dyn Object) {
        self.add(key, Field::Object(object));
    }
    /// This rank's range of a sharded key. With shards all ranks take part in each commit and save.
    pub fn shard<T: Element + Default>(
        &mut self,
        key: impl Into<Cow<'static, str>>,
        shard: &'a mut Shard<T>,
    ) {
        self.add(key, Field::Shard(shard));
    }
    /// What a sampler has processed.
    pub fn sampler(&mut self, key: impl Into<Cow<'static, str>>, sampler: &'a Sampler) {
        self.add(key, Field::Sampler(sampler));
    }
}

/// What the library knows of a field: kind, address and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Tensor(*mut c_void, usize, i32),
    Value(*mut c_void, usize),
    Object,
    Sampler(*mut sys::hvd_sampler),
    Shard(u64), // whose data and length the library's callback alone replaces
}

impl Known {
    /// The same field in other memory.
    fn is_elsewhere(self, now: Known) -> bool {
        match (self, now) {
            (Known::Tensor(_, bytes, dtype), Known::Tensor(_, new, kind)) => bytes == new && dtype == kind,
            (Known::Value(_, bytes), Known::Value(_, new)) => bytes == new,
            _ => false,
        }
    }
}

impl Field<'_> {
    /// Of a tensor or a value.
    pub(crate) fn data(&self) -> *mut c_void {
        match self.known() {
            Known::Tensor(data, ..) | Known::Value(data, _) => data,
            _ => ptr::null_mut(),
        }
    }
    pub(crate) fn known(&self) -> Known {
        match self {
            Field::Tensor(view) => {
                let raw = view.raw();
                Known::Tensor(raw.data, bytes_of(&raw), raw.dtype)
            }
            Field::Value(address, size, _) => Known::Value(*address, *size),
            Field::Object(_) => Known::Object,
            Field::Sampler(sampler) => Known::Sampler(sampler.ptr()),
            Field::Shard(shard) => Known::Shard(shard.number()),
        }
    }
}

pub(crate) type Closure<S> = Box<dyn for<'a> Fn(&'a mut S, &mut Fields<'a>)>;

/// The function that names the fields.
pub(crate) enum Describe<S> {
    Trait(for<'a> fn(&'a mut S, &mut Fields<'a>)),
    Closure(Closure<S>),
}

impl<S> Describe<S> {
    pub(crate) fn fields<'a>(&self, value: &'a mut S) -> Fields<'a> {
        let mut fields = Fields { fields: Vec::new() };
        match self {
            Describe::Trait(function) => function(value, &mut fields),
            Describe::Closure(closure) => closure(value, &mut fields),
        }
        fields
    }
}

/// The fields must be those that the library knows, where it knows them.
pub(crate) fn compare(known: &[(Cow<'static, str>, Known)], fields: &Fields<'_>) -> Result<()> {
    match moved(known, fields)?.first() {
        None => Ok(()),
        Some(&index) => {
            let ((key, known), now) = (&known[index], fields.fields[index].1.known());
            Err(Error::invalid(format!(
                "field '{key}' of the state is {now:?}, it was {known:?}: expected the same memory (write into a \
                 field of a state, or call State::relocate after you have replaced one)"
            )))
        }
    }
}

/// Which fields lie elsewhere. They must be those that the library knows, but for that.
pub(crate) fn moved(known: &[(Cow<'static, str>, Known)], fields: &Fields<'_>) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    if known.len() != fields.fields.len() {
        return Err(Error::invalid(format!(
            "the state names {} fields: expected the {} that it named first",
            fields.fields.len(),
            known.len()
        )));
    }
    for (index, ((key, known), (name, field))) in known.iter().zip(&fields.fields).enumerate() {
        let now = field.known();
        if key != name {
            return Err(Error::invalid(format!(
                "the state names field '{name}' where it named '{key}' first"
            )));
        }
        if *known == now {
            continue;
        }
        if !known.is_elsewhere(now) {
            return Err(Error::invalid(format!(
                "field '{key}' of the state is {now:?}, it was {known:?}: expected the same memory, or for a \
                 tensor or a value as many bytes of the same dtype elsewhere"
            )));
        }
        found.push(index);
    }
    Ok(found)
}
