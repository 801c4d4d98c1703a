//! The calls of a program: the attribute's answers, calls in any order, and waiting.

mod attribute_answers;
mod sequences;
mod waiting;
