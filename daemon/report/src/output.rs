//! The format of all responses of the admin API and the command line: tables of typed cells ([`table`]) with known
//! columns ([`schema`]), as text or JSON. Pure: the width of the terminal and the time are arguments.

mod cell;
pub mod schema;
pub mod table;
pub mod wrap;
