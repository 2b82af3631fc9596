//! The form of every answer, for the admin API and the command line alike: tables of typed cells ([`table`]) under known
//! columns ([`shape`]), as text or as JSON. Pure: the width of a terminal and the time are arguments.

pub mod age;
mod cell;
pub mod diff;
pub mod shape;
pub mod table;
