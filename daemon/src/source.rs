//! Where services come from.
