//! Return codes.

/// `nvmlReturn_t`.
pub type Code = u32;

/// What a call comes to: its code where it fails.
pub type Res<T = ()> = Result<T, Code>;

pub const SUCCESS: Code = 0;
pub const UNINITIALIZED: Code = 1;
pub const INVALID_ARGUMENT: Code = 2;
pub const NOT_SUPPORTED: Code = 3;
pub const NOT_FOUND: Code = 6;
pub const INSUFFICIENT_SIZE: Code = 7;
pub const TIMEOUT: Code = 10;

/// As it is returned.
pub fn code(result: Res) -> Code {
    result.err().unwrap_or(SUCCESS)
}
