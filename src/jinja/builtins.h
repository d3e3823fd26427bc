// Filters, tests, methods and operators of templates. All throw Error, without a place.
#pragma once

#include <string>

#include "jinja/value.h"

namespace replayssm::jinja {

// Null if there is no such filter or test.
using Filter = Value (*)(const Value& input, Arguments& arguments);
using Test = bool (*)(const Value& input, Arguments& arguments);
Filter find_filter(const std::string& name);
Test find_test(const std::string& name);

// True for a name that Python's dict or str or list has as a method.
bool is_method(const Value& object, const std::string& name);
Value call_method(const Value& object, const std::string& name, Arguments& arguments);

Value arithmetic(const std::string& op, const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);
// What a loop or a filter goes through; throws Error if the value has no items.
List items_of(const Value& value);
Value subscript(const Value& object, const Value& index);
Value slice(const Value& object, const Value& begin, const Value& end, const Value& step);

// The next argument of a call: positional, then named; undefined if absent.
Value argument(Arguments& arguments, size_t index, const char* name);

}  // namespace replayssm::jinja
