#include "grammar/constraint.h"
