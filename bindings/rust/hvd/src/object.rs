//! Objects of a state, which save and load themselves, and the callbacks that ask them to.
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::rc::Rc;

use hvd_sys as sys;

use crate::fields::{Field, Fields};
use crate::raw;

/// Bytes that the program makes and takes: an optimizer's settings, a random generator.
pub trait Object {
    /// Writes it.
    fn save(&mut self, out: &mut dyn io::Write) -> io::Result<()>;
    /// Takes what `save` wrote, of this or another rank. Must be able to undo a partial load by another load.
    fn load(&mut self, data: &[u8]) -> io::Result<()>;
}

/// The place of an object's callbacks: which object it is, while a call on the state is running.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) object: Cell<Option<*mut dyn Object>>,
    pub(crate) failure: RefCell<Option<String>>,
}

impl Slot {
    fn call(&self, what: &str, function: impl FnOnce(&mut dyn Object) -> io::Result<()>) -> c_int {
        let Some(object) = self.object.get() else { return 1 };
        // SAFETY: set for the duration of a call on the state, from the exclusive borrow of the object.
        let failure = match raw::caught(|| function(unsafe { &mut *object })) {
            Ok(Ok(())) => return 0,
            Ok(Err(e)) => e.to_string(),
            Err(panic) => panic,
        };
        *self.failure.borrow_mut() = Some(format!("{what}: {failure}"));
        1
    }
}

struct Sink {
    write: sys::hvd_write_fn,
    sink: *mut c_void,
}

impl io::Write for Sink {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if let Some(write) = self.write {
            // SAFETY: the library's function with the library's sink, within the save call.
            if unsafe { write(self.sink, data.as_ptr().cast(), data.len()) } != 0 {
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, "the state can't take these bytes"));
            }
        }
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) unsafe extern "C" fn save(
    userdata: *mut c_void,
    write: sys::hvd_write_fn,
    sink: *mut c_void,
) -> i32 {
    // SAFETY: userdata is a Slot, which outlives the state.
    let slot = unsafe { &*userdata.cast::<Slot>() };
    slot.call("save", |object| object.save(&mut Sink { write, sink }))
}

pub(crate) unsafe extern "C" fn load(userdata: *mut c_void, data: *const c_void, size: usize) -> i32 {
    // SAFETY: as above; data are size bytes, or NULL if there are none.
    let (slot, data) = unsafe {
        let data = if size == 0 { &[] } else { std::slice::from_raw_parts(data.cast::<u8>(), size) };
        (&*userdata.cast::<Slot>(), data)
    };
    slot.call("load", |object| object.load(data))
}

/// Lends the slots the objects of a value until they are taken out again.
pub(crate) fn lend(slots: &[Rc<Slot>], fields: &mut Fields<'_>) {
    let objects = fields.fields.iter_mut().filter_map(|(_, field)| match field {
        Field::Object(object) => Some(ptr::from_mut::<dyn Object>(*object)),
        _ => None,
    });
    for (slot, object) in slots.iter().zip(objects) {
        // SAFETY: only the lifetime changes; the call on the state takes it out before the borrow ends.
        let object = unsafe { std::mem::transmute::<*mut dyn Object, *mut (dyn Object + 'static)>(object) };
        slot.object.set(Some(object));
    }
}
