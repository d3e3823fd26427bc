#include "math_probe_body.h"
