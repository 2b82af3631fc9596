//! The addresses of apiservers: which ones are known, their state, and which one is used. The supervisor opens and
//! replaces the session in use as the pool decides.

pub mod pool;
pub mod preflight;
pub mod state_file;
pub mod supervisor;
pub mod timeouts;
