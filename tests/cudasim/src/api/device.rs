//! Devices: how many, what they are called, what they can do.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{CUdevice, Handle, Out, Text};
use crate::config::config;
use crate::error::{INVALID_DEVICE, INVALID_VALUE, Res};
use crate::stubs::exports;

/// The simulated device's name: nobody shall take it for a real one.
const NAME: &[u8] = b"CUDA Simulated Device (spanprobe tests)";

exports! {
    cuDeviceGet@2000 fn(_s, device: Out<CUdevice>, ordinal: c_int) => {
        check(ordinal)?;
        device.put(ordinal)
    };
    cuDeviceGetCount@2000 fn(_s, count: Out<c_int>) => count.put(config().devices);
    cuDeviceGetName@2000 fn(_s, name: Out<c_char>, len: c_int, dev: CUdevice) =>
        get_name(name, len, dev);
    cuDeviceGetUuid@9020, cuDeviceGetUuid_v2@11040 fn(_s, uuid: Out<[u8; 16]>, dev: CUdevice) => {
        check(dev)?;
        uuid.put(uuid_of(dev))
    };
    cuDeviceTotalMem_v2@3020 fn(_s, bytes: Out<usize>, dev: CUdevice) => {
        check(dev)?;
        bytes.put(config().memory as usize)
    };
    cuDeviceTotalMem@2000 fn(_s, bytes: Out<c_uint>, dev: CUdevice) => {
        check(dev)?;
        bytes.put(c_uint::try_from(config().memory).unwrap_or(c_uint::MAX))
    };
    cuDeviceGetAttribute@2000 fn(_s, value: Out<c_int>, attribute: c_int, dev: CUdevice) => {
        check(dev)?;
        value.put(attribute_of(attribute, dev)?)
    };
    cuDeviceComputeCapability@2000 fn(_s, major: Out<c_int>, minor: Out<c_int>, dev: CUdevice) => {
        check(dev)?;
        major.put(9)?;
        minor.put(0)
    };
    cuDeviceCanAccessPeer@4000 fn(_s, can: Out<c_int>, dev: CUdevice, peer: CUdevice) => {
        check(dev)?;
        check(peer)?;
        can.put(c_int::from(dev != peer))
    };
    cuDeviceGetPCIBusId@4010 fn(_s, id: Out<c_char>, len: c_int, dev: CUdevice) => {
        check(dev)?;
        put_text(id, len, format!("0000:{:02X}:00.0", dev + 1).as_bytes())
    };
    cuDeviceGetByPCIBusId@4010 fn(_s, dev: Out<CUdevice>, id: Text) => by_bus_id(dev, id);
    cuCtxEnablePeerAccess@4000 fn(_s, _peer: Handle, _flags: c_uint) => Ok(());
    cuCtxDisablePeerAccess@4000 fn(_s, _peer: Handle) => Ok(());
}

/// Fails for a device that does not exist.
pub fn check(dev: CUdevice) -> Res {
    if (0..config().devices).contains(&dev) { Ok(()) } else { Err(INVALID_DEVICE) }
}

fn get_name(name: Out<c_char>, len: c_int, dev: CUdevice) -> Res {
    check(dev)?;
    put_text(name, len, NAME)
}

/// Writes a terminated string into the caller's buffer, cut to its length.
fn put_text(out: Out<c_char>, len: c_int, text: &[u8]) -> Res {
    let room = usize::try_from(len).ok().filter(|&l| l > 0).ok_or(INVALID_VALUE)? - 1;
    for (i, byte) in text.iter().take(room).enumerate() {
        out.put_at(i, *byte as c_char)?;
    }
    out.put_at(text.len().min(room), 0)
}

fn by_bus_id(dev: Out<CUdevice>, id: Text) -> Res {
    let id = id.get()?;
    let bus = id.split(':').nth_back(1).and_then(|b| CUdevice::from_str_radix(b, 16).ok());
    let ordinal = bus.ok_or(INVALID_VALUE)? - 1;
    check(ordinal)?;
    dev.put(ordinal)
}

fn uuid_of(dev: CUdevice) -> [u8; 16] {
    let mut uuid = *b"cudasim\0spanprb\0";
    if let Some(last) = uuid.last_mut() {
        *last = dev as u8;
    }
    uuid
}

/// Attributes, modelled on a large data-centre GPU. Those not named are 0, "no" or "none".
fn attribute_of(attribute: c_int, dev: CUdevice) -> Res<c_int> {
    Ok(match attribute {
        1 => 1024,                        // threads per block
        2 | 3 => 1024,                    // block x, y
        4 => 64,                          // block z
        5 => c_int::MAX,                  // grid x
        6 | 7 => 65_535,                  // grid y, z
        8 => 49_152,                      // shared memory per block
        9 => 65_536,                      // constant memory
        10 => 32,                         // warp
        11 => c_int::MAX,                 // pitch
        12 | 82 => 65_536,                // registers per block, per multiprocessor
        13 => 1_980_000,                  // clock, kHz
        14 => 512,                        // texture alignment
        15 | 19 | 31 | 32 => 1,           // overlap, map host memory, concurrent kernels, ECC
        16 => 132,                        // multiprocessors
        33 => dev + 1,                    // PCI bus
        36 => 2_619_000,                  // memory clock, kHz
        37 => 5_120,                      // memory bus width
        38 => 50 << 20,                   // second-level cache
        39 => 2_048,                      // threads per multiprocessor
        40 => 3,                          // copy engines
        41 | 78 | 79 | 80 => 1,           // unified addressing, priorities, L1 caches
        75 => 9,                          // compute capability
        81 => 233_472,                    // shared memory per multiprocessor
        83 | 89 | 90 | 91 | 95 | 99 => 1, // managed memory, preemption, cooperative, register
        97 => 232_448,                    // shared memory per block, opt-in
        106 => 32,                        // blocks per multiprocessor
        115 => 1,                         // memory pools
        _ if (1..=160).contains(&attribute) => 0,
        _ => return Err(INVALID_VALUE),
    })
}
