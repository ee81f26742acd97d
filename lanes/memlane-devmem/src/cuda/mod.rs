//! Memory of NVIDIA's devices, by the driver's library, which is looked for when it is needed: `libcuda.so.1`.
//!
//! | room | what |
//! |---|---|
//! | [`driver`] | the library: is it there, does it know what we need |
//! | [`memory`] | memory of a device, as a region has it |
//! | [`dma`] | the device's own copies out of pinned memory, as an engine of the path `staged` |
//!
//! Why not a crate that knows all of CUDA: those that there are panic when the library, or one of its functions, is not
//! there; and we need twenty functions.

pub mod dma;
pub mod driver;
pub mod memory;
pub mod refused;

pub use driver::Driver;
pub use memory::Memory;
