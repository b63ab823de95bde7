//! Timelines → what people and scripts read: JSON lines, tables, summaries, the live view.
//!
//! Pure rendering: functions from values to strings (or to a writer), no clock, no knowledge of
//! where timelines come from. Whatever bytes a request carried, nothing but printable characters
//! and this module's own colour codes reaches a terminal: [`style::Line`] is the only door.

pub mod bar;
mod board;
#[cfg(feature = "live")]
mod buckets;
pub mod detail;
pub mod device;
pub mod dist;
#[cfg(feature = "live")]
pub mod doctor;
pub mod explain;
pub mod health;
pub mod jsonl;
pub mod live;
#[cfg(feature = "live")]
pub mod otlp;
pub mod palette;
#[cfg(feature = "live")]
pub mod prometheus;
mod report;
pub mod route;
mod slowest;
pub mod stats;
pub mod style;
pub mod summary;
pub mod table;
pub mod text;
pub mod why;
mod window;

#[cfg(test)]
mod tests;
