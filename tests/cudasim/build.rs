//! Gives the simulated driver the real one's SONAME, so that programs linked to or looking for
//! `libcuda.so.1` take it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads and exit handler must outlive a dlclose, as the real driver's do.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
