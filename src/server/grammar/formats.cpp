#include "server/grammar/formats.h"

#include <set>

#include "core/error.h"

namespace replayssm::server {
namespace {

std::string either(std::initializer_list<std::string> parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "(" : "|") + part;
  return out + ")";
}

std::string optional(const std::string& part) { return "(" + part + ")?"; }

// Of the years 1 to 9999, with the 29th of February in leap years.
std::string date() {
  const std::string year = R"((000[1-9]|00[1-9]\d|0[1-9]\d{2}|[1-9]\d{3}))";
  const std::string day =
      either({R"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01]))", R"((0[469]|11)-(0[1-9]|[12]\d|30))",
              R"(02-(0[1-9]|1\d|2[0-8]))"});
  const std::string fourth = "(0[48]|[2468][048]|[13579][26])";
  const std::string leap_year = either({R"(\d{2})" + fourth, fourth + "00"});
  return either({year + "-" + day, leap_year + "-02-29"});
}

std::string time() {
  const std::string clock = R"(([01]\d|2[0-3]):[0-5]\d)";
  return clock + R"(:[0-5]\d(\.\d{1,9})?)" + either({"Z", R"([+\-])" + clock});
}

// The grammar of RFC 3339, appendix A.
std::string duration() {
  const std::string n = R"(\d{1,9})";
  const std::string second = n + "S";
  const std::string minute = n + "M" + optional(second);
  const std::string hour = n + "H" + optional(minute);
  const std::string clock = "T" + either({hour, minute, second});
  const std::string day = n + "D";
  const std::string month = n + "M" + optional(day);
  const std::string year = n + "Y" + optional(month);
  return "P" + either({either({day, month, year}) + optional(clock), clock, n + "W"});
}

std::string ipv4() {
  const std::string octet = R"((25[0-5]|2[0-4]\d|1\d{2}|[1-9]\d|\d))";
  return "(" + octet + R"(\.){3})" + octet;
}

// RFC 4291, section 2.2: eight groups, of which one run may be written as "::".
std::string ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}";
  const std::string last = either({group + ":" + group, ipv4()});
  std::string out = "(" + group + ":){6}" + last;
  for (int n_before = 0; n_before <= 7; ++n_before) {
    const std::string before =
        n_before == 0 ? "" : concat("(", group, ":){", n_before - 1, "}", group);
    const int n_after = 7 - n_before;  // at most
    std::string after;
    if (n_after >= 2) after = concat("(", group, ":){0,", n_after - 2, "}", last, "|", group, "|");
    if (n_after == 1) after = group + "|";
    out += "|" + before + "::(" + after + ")";
  }
  return out;
}

// RFC 1123: labels of letters, digits and hyphens inside, of 63 characters at most, 253 in all; and
// RFC 5891, section 4.2.3.1: no hyphens at both the third and the fourth place. Each position is a
// state of an automaton and costs time once: the labels behind the first are shorter.
std::string label(int longest) {
  const std::string end = "[a-zA-Z0-9]", any = "[a-zA-Z0-9\\-]";
  return end + "(" + any + "{0,2}" + end + "|" + any + "(" + end + any + "|\\-" + end + ")" + any +
         concat("{0,", longest - 5, "}") + end + ")?";
}

std::string hostname() { return label(63) + "(\\." + label(20) + "){0,5}"; }

// With a domain of at least two labels, the last of letters.
std::string email() {
  const std::string local = "[A-Za-z0-9_+\\-](\\.?[A-Za-z0-9_+\\-]){0,31}";
  return local + "@(" + label(32) + "\\.){1,3}[A-Za-z]{2,12}";
}

// The grammar of RFC 6901, without the characters that JSON writes as escapes.
std::string json_pointer() { return "(/([^~/]|~[01])*)*"; }

// RFC 3986, with a name or nothing as host, and no user. `bounded`: at most 700 characters.
class Uri {
 public:
  explicit Uri(bool bounded) : bounded_(bounded) {}

  std::string absolute() const {
    return "[A-Za-z][A-Za-z0-9+.\\-]" + times(0, 9) + ":" +
           either({either({authority() + "/", "/?" + one(":@")}) + path(), authority(), "/?"}) +
           tail();
  }
  std::string relative() const {
    const std::string first = one("@") + times(1, 20);  // without ':'
    return either({either({authority() + "/", "/" + one(":@"), first + "/"}) + path(), authority(),
                   first, "/?"}) +
           tail();
  }

 private:
  std::string times(int least, int most) const {
    return bounded_ ? concat("{", least, ",", most, "}") : least == 0 ? "*" : "+";
  }
  static std::string one(const std::string& more) {
    return "([A-Za-z0-9\\-._~!$&'()*+,;=" + more + "]|%[0-9A-Fa-f]{2})";
  }
  std::string path() const { return one(":@/") + times(0, 110); }
  std::string authority() const {
    return "//([A-Za-z0-9\\-._~]" + times(1, 50) + optional(":\\d{1,5}") + ")?";
  }
  std::string tail() const {
    return optional("\\?" + one(":@/?") + times(0, 80)) +
           optional("#" + one(":@/?") + times(0, 10));
  }

  const bool bounded_;
};

const std::set<std::string> kRefusedFormats = {"idn-hostname", "regex", "relative-json-pointer",
                                               "uri-template"};

}  // namespace

FormatKind kind_of_format(const std::string& format) {
  if (kRefusedFormats.contains(format)) return FormatKind::kRefused;
  return format_pattern(format).empty() ? FormatKind::kNote : FormatKind::kEnforced;
}

std::string format_pattern(const std::string& format, bool bounded) {
  if (format == "date") return date();
  if (format == "time") return time();
  if (format == "date-time") return date() + "T" + time();
  if (format == "duration") return duration();
  if (format == "ipv4") return ipv4();
  if (format == "ipv6") return ipv6();
  if (format == "hostname") return hostname();
  if (format == "email" || format == "idn-email") return email();
  if (format == "uuid") return "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";
  if (format == "uri" || format == "iri") return Uri(bounded).absolute();
  if (format == "uri-reference" || format == "iri-reference") return Uri(bounded).relative();
  if (format == "json-pointer") return json_pointer();
  return {};
}

}  // namespace replayssm::server
