//! The views of a snapshot for readers: rows, the result of a connection with its reasons, and the differences between
//! source, memory and kernel.

mod actual;
pub mod changed;
pub mod differences;
pub mod drains;
pub mod explanation;
pub mod history;
pub mod kept;
pub mod outside;
pub mod ranges;
pub mod reports;
pub mod rows;
pub mod summary;
