//! The exported functions. Names, arguments and rules are those of `nvml.h`; what is not here is not
//! simulated, and callers find no such symbol, as in an older library.

mod device;
mod events;
mod gpm;
mod numbers;
mod processes;
mod system;

use std::ffi::c_char;

use crate::error::{INSUFFICIENT_SIZE, INVALID_ARGUMENT, Res};

/// Writes an answer to where the caller wants it.
fn put<T>(to: *mut T, value: T) -> Res {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by NVML's contract valid for a write of its type.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes the `index`-th of an array that the caller gave room for.
fn put_at<T>(to: *mut T, index: usize, value: T) -> Res {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller gave room for more than `index` elements, by NVML's contract; the callers
    // here compare with the count that it passed.
    unsafe { to.add(index).write(value) };
    Ok(())
}

/// Reads what the caller passed by pointer.
fn get<T: Copy>(from: *const T) -> Res<T> {
    if from.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by NVML's contract a value of its type.
    Ok(unsafe { from.read() })
}

/// Writes a string with its end into the caller's buffer.
fn put_text(to: *mut c_char, room: u32, text: &[u8]) -> Res {
    if room as usize <= text.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    for (at, byte) in text.iter().chain(&[0]).enumerate() {
        put_at(to, at, *byte as c_char)?;
    }
    Ok(())
}
