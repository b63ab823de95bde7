//! The driver as a whole: initialisation, version, look-up of functions, names of errors.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::abi::{In, Out, Text};
use crate::config::config;
use crate::error::{CuError, INVALID_VALUE, NO_DEVICE, NOT_FOUND, Res};
use crate::proc_address::{Found, find};
use crate::stubs::{self, exports};

exports! {
    cuInit@2000 fn(_s, flags: c_uint) => init(flags);
    cuDriverGetVersion@2020 fn(_s, version: Out<c_int>) => version.put(config().driver_version);
    cuGetProcAddress@11030
        fn(_s, name: Text, function: Out<*const c_void>, version: c_int, flags: u64) =>
        get_proc_address(name, function, version, flags, None);
    cuGetProcAddress_v2@12000
        fn(_s, name: Text, function: Out<*const c_void>, version: c_int, flags: u64,
         status: Out<c_int>) =>
        get_proc_address(name, function, version, flags, Some(status));
    cuGetErrorName@6000 fn(_s, code: c_int, name: Out<*const c_char>) =>
        error_text(CuError::name(code), name);
    cuGetErrorString@6000 fn(_s, code: c_int, text: Out<*const c_char>) =>
        error_text(CuError::text(code), text);
    cuGetExportTable@3000 fn(_s, table: Out<*const c_void>, _id: In<[u8; 16]>) =>
        no_export_table(table);
}

fn init(flags: c_uint) -> Res {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if config().devices == 0 {
        return Err(NO_DEVICE);
    }
    stubs::initialised();
    Ok(())
}

fn get_proc_address(
    name: Text,
    function: Out<*const c_void>,
    version: c_int,
    flags: u64,
    status: Option<Out<c_int>>,
) -> Res {
    function.check()?;
    let name = name.get()?;
    let (address, code) = match find(&name, version, flags) {
        Found::Symbol(export) => (export.stub as *const c_void, 0),
        Found::Unknown => (std::ptr::null(), 1),
        Found::TooNew => (std::ptr::null(), 2),
    };
    function.put(address)?;
    match status {
        Some(status) => {
            status.put_if(code);
            Ok(())
        }
        // The first form has no other way to say it.
        None if address.is_null() => Err(NOT_FOUND),
        None => Ok(()),
    }
}

fn error_text(text: Option<&'static std::ffi::CStr>, out: Out<*const c_char>) -> Res {
    match text {
        Some(text) => out.put(text.as_ptr()),
        None => {
            out.put(std::ptr::null())?;
            Err(INVALID_VALUE)
        }
    }
}

/// The private tables of the real driver are its own; this one has none.
fn no_export_table(table: Out<*const c_void>) -> Res {
    table.put(std::ptr::null())?;
    Err(NOT_FOUND)
}
