//! The view of operators: metrics through a real exporter, and the dashboard and alerts made from them.

mod exposition;
mod files;
mod metrics;
