//! What a program's calls come to: what the attribute answers, calls in any order, and waiting.

mod attribute_answers;
mod sequences;
mod waiting;
