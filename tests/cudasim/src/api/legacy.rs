//! First versions of calls, from before CUDA 3.2, whose device pointers and sizes have 32 bits.
//! The real library still exports them; addresses of this one do not fit, so they only exist.

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};

use crate::abi::{Handle, In, Out, Text};
use crate::error::NOT_SUPPORTED;
use crate::stubs::exports;

exports! {
    cuMemAlloc@2000 fn(_s, _out: Out<c_uint>, _n: c_uint) => Err(NOT_SUPPORTED);
    cuMemAllocPitch@2000
        fn(_s, _out: Out<c_uint>, _pitch: Out<c_uint>, _width: c_uint, _height: c_uint, _e: c_uint) =>
        Err(NOT_SUPPORTED);
    cuMemFree@2000 fn(_s, _at: c_uint) => Err(NOT_SUPPORTED);
    cuMemGetInfo@2000 fn(_s, _free: Out<c_uint>, _total: Out<c_uint>) => Err(NOT_SUPPORTED);
    cuMemGetAddressRange@2000 fn(_s, _base: Out<c_uint>, _size: Out<c_uint>, _at: c_uint) =>
        Err(NOT_SUPPORTED);
    cuMemHostGetDevicePointer@2020 fn(_s, _out: Out<c_uint>, _at: *mut c_void, _flags: c_uint) =>
        Err(NOT_SUPPORTED);
    cuModuleGetGlobal@2000 fn(_s, _at: Out<c_uint>, _n: Out<c_uint>, _module: Handle, _name: Text) =>
        Err(NOT_SUPPORTED);
    cuMemcpyHtoD@2000 fn(_s, _dst: c_uint, _src: *const c_void, _n: c_uint) => Err(NOT_SUPPORTED);
    cuMemcpyDtoH@2000 fn(_s, _dst: *mut c_void, _src: c_uint, _n: c_uint) => Err(NOT_SUPPORTED);
    cuMemcpyDtoD@2000 fn(_s, _dst: c_uint, _src: c_uint, _n: c_uint) => Err(NOT_SUPPORTED);
    cuMemcpyHtoDAsync@2000
        fn(_s, _dst: c_uint, _src: *const c_void, _n: c_uint, _stream: Handle) => Err(NOT_SUPPORTED);
    cuMemcpyDtoHAsync@2000
        fn(_s, _dst: *mut c_void, _src: c_uint, _n: c_uint, _stream: Handle) => Err(NOT_SUPPORTED);
    cuMemcpyDtoDAsync@3000
        fn(_s, _dst: c_uint, _src: c_uint, _n: c_uint, _stream: Handle) => Err(NOT_SUPPORTED);
    cuMemcpy2D@2000, cuMemcpy2DUnaligned@2000, cuMemcpy3D@2000 fn(_s, _copy: In<u32>) =>
        Err(NOT_SUPPORTED);
    cuMemcpy2DAsync@2000, cuMemcpy3DAsync@2000 fn(_s, _copy: In<u32>, _stream: Handle) =>
        Err(NOT_SUPPORTED);
    cuMemsetD8@2000 fn(_s, _dst: c_uint, _value: c_uchar, _n: c_uint) => Err(NOT_SUPPORTED);
    cuMemsetD16@2000 fn(_s, _dst: c_uint, _value: c_ushort, _n: c_uint) => Err(NOT_SUPPORTED);
    cuMemsetD32@2000 fn(_s, _dst: c_uint, _value: c_uint, _n: c_uint) => Err(NOT_SUPPORTED);
    cuMemsetD2D8@2000
        fn(_s, _dst: c_uint, _pitch: c_uint, _value: c_uchar, _w: c_uint, _h: c_uint) =>
        Err(NOT_SUPPORTED);
    cuMemsetD2D16@2000
        fn(_s, _dst: c_uint, _pitch: c_uint, _value: c_ushort, _w: c_uint, _h: c_uint) =>
        Err(NOT_SUPPORTED);
    cuMemsetD2D32@2000
        fn(_s, _dst: c_uint, _pitch: c_uint, _value: c_uint, _w: c_uint, _h: c_uint) =>
        Err(NOT_SUPPORTED);
    cuLaunch@2000 fn(_s, _function: Handle) => Err(NOT_SUPPORTED);
    cuLaunchGrid@2000 fn(_s, _function: Handle, _width: c_int, _height: c_int) => Err(NOT_SUPPORTED);
    cuLaunchGridAsync@2000
        fn(_s, _function: Handle, _width: c_int, _height: c_int, _stream: Handle) =>
        Err(NOT_SUPPORTED);
}
