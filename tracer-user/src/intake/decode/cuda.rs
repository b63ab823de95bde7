//! Calls of the CUDA driver.

use std::mem::offset_of;

use bytes::Bytes;
use tracer_ebpf::wire::{
    Header, cuda,
    cuda_api::{self, Take},
};

use super::{DecodeError, fields::Fields};
use crate::intake::event::{Call, Launches};

/// The row of the function with this number. The table is in the order of the numbers, so that the
/// second look is never needed; a test holds it to that.
fn api_info(number: u16) -> Option<&'static cuda_api::ApiInfo> {
    let fits = |info: &&cuda_api::ApiInfo| info.api as u16 == number;
    let guess = usize::from(number).checked_sub(1)?;
    cuda_api::APIS.get(guess).filter(fits).or_else(|| cuda_api::APIS.iter().find(fits))
}

impl Fields<'_> {
    pub(super) fn launches(&self, header: &Header) -> Result<Launches, DecodeError> {
        self.exactly(size_of::<cuda::Launches>())?;
        let grid = offset_of!(cuda::Launches, grid);
        let stream = self.u64(offset_of!(cuda::Launches, stream))?;
        Ok(Launches {
            run: self.u64(offset_of!(cuda::Launches, run_id))?,
            first_ns: self.u64(offset_of!(cuda::Launches, first_ns))?,
            last_ns: self.u64(offset_of!(cuda::Launches, last_ns))?,
            count: self.u32(offset_of!(cuda::Launches, count))?,
            stream: (header.flags & cuda::CUDA_STREAM_FAULT == 0).then_some(stream),
            per_thread: header.flags & cuda::CUDA_PER_THREAD != 0,
            function: self.u64(offset_of!(cuda::Launches, function))?,
            mixed: header.flags & cuda::LAUNCHES_MIXED != 0,
            grid: [self.u32(grid)?, self.u32(grid + 4)?, self.u32(grid + 8)?],
        })
    }

    pub(super) fn call(&self, header: &Header) -> Result<Call, DecodeError> {
        let data_at = size_of::<cuda::Call>();
        let payload = self.u16(offset_of!(cuda::Call, payload))?;
        self.with_payload(data_at, payload.into())?;
        let number = self.u16(offset_of!(cuda::Call, api))?;
        let unknown = DecodeError::Field { field: "api", value: number.into() };
        let info = api_info(number).ok_or(unknown)?;
        let mut args = [0; 6];
        for (i, arg) in args.iter_mut().enumerate() {
            *arg = self.u64(offset_of!(cuda::Call, args) + i * size_of::<u64>())?;
        }
        let out = self.u64(offset_of!(cuda::Call, out))?;
        let takes_out = match info.take {
            Take::Out | Take::OutAndName => true,
            Take::Regs
            | Take::Memcpy2d
            | Take::Memcpy3d
            | Take::Stack
            | Take::LaunchStack
            | Take::LaunchConfig => false,
        };
        let mut data = Bytes::new();
        if header.flags & cuda::CUDA_PAYLOAD_FAULT == 0 {
            data = self.rest(data_at);
        }
        if info.take == Take::OutAndName {
            data.truncate(data.iter().position(|byte| *byte == 0).unwrap_or(data.len()));
        }
        Ok(Call {
            api: info.api,
            per_thread: header.flags & cuda::CUDA_PER_THREAD != 0,
            enter_ns: self.u64(offset_of!(cuda::Call, enter_ns))?,
            args,
            out: (takes_out && header.flags & cuda::CUDA_OUT_FAULT == 0).then_some(out),
            ret: self.i32(offset_of!(cuda::Call, ret))?,
            payload: data,
        })
    }
}
