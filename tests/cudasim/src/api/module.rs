//! Modules and libraries, and the functions in them.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use crate::abi::{CUdevice, DevPtr, Handle, In, Out, Text};
use crate::clock::sleep_us;
use crate::config::config;
use crate::error::{FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, Res};
use crate::memory::{Block, Origin};
use crate::module::{BUSY_PREFIX, Function, Image, Module, read_file_image, read_image};
use crate::sim::{Sim, lock, wait};
use crate::stubs::exports;

exports! {
    cuModuleLoad@2000 fn(_s, out: Out<Handle>, path: Text) => load_module(out, read_path(path)?);
    cuModuleLoadData@2000, cuModuleLoadFatBinary@2000 fn(_s, out: Out<Handle>, image: *const u8) =>
        load_module(out, read_image(image)?);
    cuModuleLoadDataEx@2010
        fn(_s, out: Out<Handle>, image: *const u8, _n: c_uint, _options: In<u64>, _values: In<u64>) =>
        load_module(out, read_image(image)?);
    cuLibraryLoadData@12000
        fn(_s, out: Out<Handle>, image: *const u8, _jit: In<u64>, _jit_values: In<u64>,
         _n_jit: c_uint, _options: In<u64>, _values: In<u64>, _n: c_uint) =>
        load(out, 0, read_image(image)?);
    cuLibraryLoadFromFile@12000
        fn(_s, out: Out<Handle>, path: Text, _jit: In<u64>, _jit_values: In<u64>,
         _n_jit: c_uint, _options: In<u64>, _values: In<u64>, _n: c_uint) =>
        load(out, 0, read_path(path)?);
    cuModuleUnload@2000, cuLibraryUnload@12000 fn(_s, module: Handle) => unload(module);
    cuModuleGetLoadingMode@11070 fn(_s, mode: Out<c_int>) => mode.put(2);
    cuModuleGetFunction@2000, cuLibraryGetKernel@12000
        fn(_s, out: Out<Handle>, module: Handle, name: Text) => get_function(out, module, name);
    cuModuleGetFunctionCount@12040, cuLibraryGetKernelCount@12040
        fn(_s, count: Out<c_uint>, module: Handle) => {
        let sim = lock();
        let entries = &sim.modules.get(module)?.entries;
        count.put(entries.as_ref().map_or(0, Vec::len) as c_uint)
    };
    cuModuleGetGlobal_v2@3020, cuLibraryGetGlobal@12000
        fn(_s, at: Out<DevPtr>, bytes: Out<usize>, module: Handle, name: Text) =>
        get_global(at, bytes, module, name);
    cuLibraryGetModule@12000 fn(_s, out: Out<Handle>, library: Handle) => {
        lock().modules.get(library)?;
        out.put(library)
    };
    cuKernelGetFunction@12000 fn(_s, out: Out<Handle>, kernel: Handle) => {
        lock().functions.get(kernel)?;
        out.put(kernel)
    };
    cuKernelGetLibrary@12050 fn(_s, out: Out<Handle>, kernel: Handle) =>
        out.put(lock().functions.get(kernel)?.module);
    cuFuncGetModule@11000 fn(_s, out: Out<Handle>, function: Handle) =>
        out.put(lock().functions.get(function)?.module);
    cuKernelGetName@12030, cuFuncGetName@12030 fn(_s, out: Out<*const c_char>, function: Handle) =>
        out.put(lock().functions.get(function)?.name.as_ptr());
    cuFuncGetAttribute@2020 fn(_s, value: Out<c_int>, attribute: c_int, function: Handle) =>
        get_attribute(value, attribute, function);
    cuKernelGetAttribute@12000
        fn(_s, value: Out<c_int>, attribute: c_int, function: Handle, _dev: CUdevice) =>
        get_attribute(value, attribute, function);
    cuFuncSetAttribute@9000 fn(_s, function: Handle, attribute: c_int, value: c_int) =>
        set_attribute(function, attribute, value);
    cuKernelSetAttribute@12000
        fn(_s, attribute: c_int, value: c_int, function: Handle, _dev: CUdevice) =>
        set_attribute(function, attribute, value);
    cuFuncSetCacheConfig@3000, cuFuncSetSharedMemConfig@4020
        fn(_s, function: Handle, _config: c_int) => lock().functions.get(function).map(drop);
    cuKernelSetCacheConfig@12000 fn(_s, function: Handle, _config: c_int, _dev: CUdevice) =>
        lock().functions.get(function).map(drop);
    cuFuncIsLoaded@12040 fn(_s, state: Out<c_int>, function: Handle) =>
        state.put(c_int::from(lock().functions.get(function)?.loaded));
    cuFuncLoad@12040 fn(_s, function: Handle) => load_function(function);
    cuModuleGetTexRef@2000, cuModuleGetSurfRef@3000
        fn(_s, _out: Out<*mut c_void>, _module: Handle, _name: Text) => Err(NOT_SUPPORTED);
}

fn read_path(path: Text) -> Res<Image> {
    let contents = std::fs::read(path.get()?).map_err(|_| FILE_NOT_FOUND)?;
    read_file_image(contents)
}

fn load_module(out: Out<Handle>, image: Image) -> Res {
    let ctx = lock().current()?;
    load(out, ctx, image)
}

fn load(out: Out<Handle>, ctx: Handle, image: Image) -> Res {
    out.check()?;
    // Parsing and compiling: longer for a longer text.
    sleep_us(config().module_load_us + image.bytes / 1_000);
    let module = lock().modules.add(Module {
        ctx,
        entries: image.entries,
        globals: image.globals,
        placed: HashMap::new(),
        functions: HashMap::new(),
    });
    out.put(module)
}

fn unload(module: Handle) -> Res {
    let sim = lock();
    let ctx = match sim.modules.get(module)?.ctx {
        0 => sim.current().unwrap_or(0),
        ctx => ctx,
    };
    // Its code and variables may be in use.
    let all = sim.contexts.get(ctx).map(|c| c.all.clone()).unwrap_or_default();
    let how = sim.waiting(ctx);
    drop(sim);
    wait(&all, how);
    let mut sim = lock();
    let gone = sim.modules.remove(module)?;
    for base in gone.placed.values() {
        sim.memory.release(*base);
    }
    sim.functions.remove_where(|f| f.module == module);
    Ok(())
}

fn get_function(out: Out<Handle>, module: Handle, name: Text) -> Res {
    out.check()?;
    let name = name.get()?;
    let mut sim = lock();
    let m = sim.modules.get(module)?;
    if let Some(&known) = m.functions.get(&name) {
        return out.put(known);
    }
    let exists = match &m.entries {
        Some(entries) => entries.contains(&name),
        None => !name.is_empty(),
    };
    if !exists {
        return Err(NOT_FOUND);
    }
    let ctx = m.ctx;
    // Names stay: callers keep the pointer, the oracle's records refer to them.
    let text: &'static str = Box::leak(name.clone().into_boxed_str());
    let c_name = CString::new(name.as_str()).map_err(|_| NOT_FOUND)?;
    let function = sim.functions.add(Function {
        ctx,
        module,
        name: Box::leak(c_name.into_boxed_c_str()),
        text,
        busy: name.starts_with(BUSY_PREFIX),
        loaded: false,
        attributes: HashMap::new(),
    });
    sim.modules.get_mut(module)?.functions.insert(name, function);
    out.put(function)
}

fn get_global(at: Out<DevPtr>, bytes: Out<usize>, module: Handle, name: Text) -> Res {
    let name = name.get()?;
    let mut sim = lock();
    let m = sim.modules.get(module)?;
    let size = *m.globals.get(&name).ok_or(NOT_FOUND)?;
    let known = m.placed.get(&name).copied();
    let ctx = if m.ctx == 0 { sim.current()? } else { m.ctx };
    let base = match known {
        Some(base) => base,
        None => {
            let device = sim.usable(ctx)?.device;
            let origin = Origin::Device;
            let block = Block { base: 0, size, origin, ctx, device, flags: 0, freed: false };
            let base = sim.memory.allocate(block, config().memory)?;
            sim.modules.get_mut(module)?.placed.insert(name, base);
            base
        }
    };
    at.put_if(base);
    bytes.put_if(size as usize);
    Ok(())
}

/// `CUfunction_attribute`: values of an ordinary small kernel, unless set.
fn get_attribute(out: Out<c_int>, attribute: c_int, function: Handle) -> Res {
    let sim = lock();
    let set = sim.functions.get(function)?.attributes.get(&attribute).copied();
    out.put(match (set, attribute) {
        (Some(value), _) => value,
        (None, 0) => 1024,   // threads per block
        (None, 4) => 32,     // registers
        (None, 5 | 6) => 90, // PTX and binary version
        (None, 8) => 49_152, // dynamic shared memory
        (None, 1..=16) => 0,
        _ => return Err(INVALID_VALUE),
    })
}

fn set_attribute(function: Handle, attribute: c_int, value: c_int) -> Res {
    let mut sim = lock();
    let f = sim.functions.get_mut(function)?;
    match attribute {
        8 if !(0..=232_448).contains(&value) => Err(INVALID_VALUE),
        8..=16 => {
            f.attributes.insert(attribute, value);
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    }
}

fn load_function(function: Handle) -> Res {
    if needs_loading(&mut lock(), function)? {
        sleep_us(config().lazy_load_us);
    }
    Ok(())
}

/// Whether this use of the function is the first, and has to pay for loading its code.
pub fn needs_loading(sim: &mut Sim, function: Handle) -> Res<bool> {
    let f = sim.functions.get_mut(function).map_err(|_| INVALID_HANDLE)?;
    Ok(!std::mem::replace(&mut f.loaded, true))
}
